#include "matmul.h"

#include <omp.h>
#include <sys/mman.h>

#include <cstdlib>
#include <dnnl.hpp>
#include <map>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>

#include "matmul_kernels.h"

namespace operators {
namespace {

using dnnl::memory;

const dnnl::engine& engine() {
  static const dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
  return cpu;
}

dnnl::stream& stream() {
  thread_local dnnl::stream own(engine());
  return own;
}

constexpr auto kType = memory::data_type::f32;

auto key(const Layout& layout) {
  return std::make_tuple(layout.order, layout.rows, layout.columns, layout.step);
}

// A map whose values are made once and never change; safe for several threads.
template <typename Key, typename Value>
class Cache {
 public:
  template <typename Make>
  const Value& get(const Key& key, Make make) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = map_.find(key);
    if (found == map_.end()) found = map_.emplace(key, make()).first;
    return found->second;
  }

 private:
  std::mutex mutex_;
  std::map<Key, Value> map_;
};

memory::desc plain(const Layout& layout) {
  const memory::dims steps =
      layout.order == Layout::row_major ? memory::dims{layout.step, 1} : memory::dims{1, layout.step};
  return memory::desc({layout.rows, layout.columns}, kType, steps);
}

// The layout must not depend on the other factor, because packed weights meet batches of any size: this is
// the choice for a typical one.
memory::desc preferred(const Layout& layout) {
  constexpr int64_t kTypicalRows = 1024;
  const memory::desc left({kTypicalRows, layout.rows}, kType, memory::format_tag::ab);
  const memory::desc any({layout.rows, layout.columns}, kType, memory::format_tag::any);
  const memory::desc output({kTypicalRows, layout.columns}, kType, memory::format_tag::ab);
  return dnnl::matmul::primitive_desc(engine(), left, any, output).weights_desc();
}

memory::desc describe(const Layout& layout) {
  if (layout.order != Layout::blocked) return plain(layout);
  static Cache<decltype(key(layout)), memory::desc> cache;
  return cache.get(key(layout), [&] { return preferred(layout); });
}

// A primitive with the size of the scratch memory that it wants.
template <typename Primitive>
struct Ready {
  Primitive primitive;
  memory::desc scratchpad;
};

template <typename Primitive, typename Description>
Ready<Primitive> ready(const Description& description) {
  return {Primitive(description), description.scratchpad_desc()};
}

dnnl::primitive_attr own_scratchpad() {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attributes;
}

memory at(const memory::desc& description, const void* data) {
  return memory(description, engine(), const_cast<void*>(data));
}

memory scratchpad(const memory::desc& description) {
  return at(description, scratch(kOneDnnSlot, description.get_size()));
}

// One slot's memory.
class Region {
 public:
  Region() = default;
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
  ~Region() { std::free(data_); }

  void* at_least(size_t bytes) {
    if (bytes > size_) {
      std::free(data_);
      data_ = nullptr;
      size_ = 0;
      constexpr size_t kHugePage = 2 << 20, kPage = 4096;
      const size_t alignment = bytes >= kHugePage ? kHugePage : kPage;
      const size_t rounded = (bytes + alignment - 1) / alignment * alignment;
      data_ = std::aligned_alloc(alignment, rounded);
      if (data_ == nullptr) throw std::bad_alloc();
      size_ = rounded;
      if (alignment == kHugePage) madvise(data_, rounded, MADV_HUGEPAGE);
    }
    return data_;
  }

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
};

bool choose_tiles() {
  const char* wanted = std::getenv("BERT_OPERATORS_BF16");
  if (wanted == nullptr) return KERNEL(multiplies_bfloat16)();
  if (std::string(wanted) == "rounded") return false;
  if (std::string(wanted) != "native")
    throw std::runtime_error("BERT_OPERATORS_BF16=" + std::string(wanted) + " should be native or rounded");
  require(isa() >= Isa::avx512, "BERT_OPERATORS_BF16=native needs AVX-512");
  return true;
}

}  // namespace

Precision precision(const Attributes& attributes) {
  const auto found = attributes.find("dtype");
  require(found != attributes.end(), "attribute dtype is missing");
  return precision_named(found->second);
}

Precision precision_named(const std::string& dtype) {
  if (dtype == "bfloat16") return Precision::bfloat16;
  if (dtype == "bfloat16x3") return Precision::bfloat16x3;
  require(dtype == "float32", "dtype is float32, bfloat16 or bfloat16x3");
  return Precision::float32;
}

bool low_precision(const Attributes& attributes) { return precision(attributes) == Precision::bfloat16; }

size_t Layout::bytes() const { return describe(*this).get_size(); }

Layout Layout::transposed() const {
  return {order == row_major ? column_major : row_major, columns, rows, step};
}

Layout row_major(int64_t rows, int64_t columns) { return {Layout::row_major, rows, columns, columns}; }

Layout row_major_step(int64_t rows, int64_t columns, int64_t step) {
  return {Layout::row_major, rows, columns, step};
}

Layout blocked(int64_t rows, int64_t columns) { return {Layout::blocked, rows, columns, 0}; }

void multiply(const Layout& left, const float* left_data, const Layout& right, const float* right_data,
              const Layout& output, float* output_data, const float* bias, bool accumulate) {
  if (right.order != Layout::blocked && bias == nullptr) {
    // Copies the factors into layouts of its own as it goes: as fast as the primitives with blocked factors.
    const auto transposed = [](const Layout& factor) {
      return factor.order == Layout::row_major ? 'N' : 'T';
    };
    const auto status = dnnl::sgemm(transposed(left), transposed(right), output.rows, output.columns,
                                    left.columns, 1.f, left_data, left.step, right_data, right.step,
                                    accumulate ? 1.f : 0.f, output_data, output.step);
    if (status != dnnl::status::success) throw std::runtime_error("oneDNN cannot multiply these matrices");
    return;
  }
  const memory::desc left_desc = describe(left), right_desc = describe(right), output_desc = describe(output);
  const memory::desc bias_desc({1, output.columns}, kType, memory::format_tag::ab);
  const auto name =
      std::make_tuple(key(left), key(right), output.step, bias != nullptr, accumulate, omp_get_max_threads());
  static Cache<std::remove_const_t<decltype(name)>, Ready<dnnl::matmul>> cache;
  const auto& product = cache.get(name, [&] {
    using Description = dnnl::matmul::primitive_desc;
    dnnl::primitive_attr attributes = own_scratchpad();
    if (accumulate) {
      dnnl::post_ops sum;
      sum.append_sum();
      attributes.set_post_ops(sum);
    }
    return ready<dnnl::matmul>(
        bias ? Description(engine(), left_desc, right_desc, bias_desc, output_desc, attributes)
             : Description(engine(), left_desc, right_desc, output_desc, attributes));
  });
  std::unordered_map<int, memory> arguments = {{DNNL_ARG_SRC, at(left_desc, left_data)},
                                               {DNNL_ARG_WEIGHTS, at(right_desc, right_data)},
                                               {DNNL_ARG_DST, at(output_desc, output_data)},
                                               {DNNL_ARG_SCRATCHPAD, scratchpad(product.scratchpad)}};
  if (bias) arguments.emplace(DNNL_ARG_BIAS, at(bias_desc, bias));
  product.primitive.execute(stream(), arguments);
  stream().wait();
}

void reorder(const Layout& from, const float* source, const Layout& to, float* target) {
  const memory::desc from_desc = describe(from), to_desc = describe(to);
  const auto name = std::make_tuple(key(from), key(to), omp_get_max_threads());
  static Cache<std::remove_const_t<decltype(name)>, Ready<dnnl::reorder>> cache;
  const auto& copy = cache.get(name, [&] {
    return ready<dnnl::reorder>(
        dnnl::reorder::primitive_desc(engine(), from_desc, engine(), to_desc, own_scratchpad()));
  });
  copy.primitive.execute(stream(), {{DNNL_ARG_FROM, at(from_desc, source)},
                                    {DNNL_ARG_TO, at(to_desc, target)},
                                    {DNNL_ARG_SCRATCHPAD, scratchpad(copy.scratchpad)}});
  stream().wait();
}

bool tile_products() {
  static const bool chosen = choose_tiles();
  return chosen;
}

void* scratch(Slot slot, size_t bytes) {
  thread_local Region regions[kSlots];
  return regions[slot].at_least(bytes);
}

}  // namespace operators
