// Which instruction set the kernels use. Every *_kernels.cc is compiled once for each, in a namespace of that
// name; which one runs is decided when the library is loaded.
#pragma once

namespace operators {

enum class Isa { baseline, avx2, avx512, avx512_bf16, amx };

// The best that this processor offers, or what BERT_OPERATORS_ISA names (for tests), read once.
// Throws std::runtime_error for a name that is unknown or beyond this processor.
Isa isa();

}  // namespace operators

// DECLARE_KERNELS(void f(int n); void g(float x);) declares both in every build's namespace.
#define DECLARE_KERNELS(...)            \
  namespace operators {                 \
  namespace baseline { __VA_ARGS__ }    \
  namespace avx2 { __VA_ARGS__ }        \
  namespace avx512 { __VA_ARGS__ }      \
  namespace avx512_bf16 { __VA_ARGS__ } \
  namespace amx { __VA_ARGS__ }         \
  }

// KERNEL(f)(3) calls the build of f for this processor.
#define KERNEL(function)                                                                  \
  (::operators::isa() == ::operators::Isa::amx         ? ::operators::amx::function         \
   : ::operators::isa() == ::operators::Isa::avx512_bf16 ? ::operators::avx512_bf16::function \
   : ::operators::isa() == ::operators::Isa::avx512    ? ::operators::avx512::function      \
   : ::operators::isa() == ::operators::Isa::avx2      ? ::operators::avx2::function        \
                                                       : ::operators::baseline::function)
