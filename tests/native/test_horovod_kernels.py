"""Horovod's GPU kernels of native/cuda, compiled for the CPU and taken through every block and thread there,
against NumPy."""

from __future__ import annotations

import ctypes
import subprocess

import numpy as np
import pytest

from tests.processes import ROOT

KERNELS = ROOT / "native" / "cuda" / "horovod_kernels.cu"
CAPACITY = 160
# What NVRTC brings: indices of a thread, and float16, here by the processor's own conversion.
AS_CPU = """
#include <immintrin.h>
#include <cstddef>
#include <cstdint>
struct Index { unsigned int x; };
static Index blockIdx, threadIdx, blockDim, gridDim;
#define __global__
#define __device__
struct Half;
static float widened(Half value);
static Half narrowed(float value);
#include "KERNELS"
static float widened(Half value) { return _cvtsh_ss(value.bits); }
static Half narrowed(float value) { return Half{static_cast<unsigned short>(_cvtss_sh(value, 0))}; }
template <typename F> static void everywhere(int blocks, int threads, F kernel) {
  gridDim.x = blocks;
  blockDim.x = threads;
  for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x)
    for (threadIdx.x = 0; threadIdx.x < blockDim.x; ++threadIdx.x) kernel();
}
extern "C" void run_copy(Copies* copies, int count) {
  everywhere(count * BLOCKS_PER_COPY, 32, [&] { copy_many(*copies); });
}
#define RUN(T, name)                                                                    \\
  extern "C" void run_scale_##name(const T* from, T* to, int64 count, double factor) {  \\
    everywhere(3, 32, [&] { scale_##name(from, to, count, factor); });                  \\
  }                                                                                     \\
  extern "C" void run_scale_many_##name(Copies* copies, int count, double factor) {     \\
    everywhere(count * BLOCKS_PER_COPY, 32, [&] { scale_many_##name(*copies, factor); }); \\
  }
RUN(unsigned char, uint8)
RUN(signed char, int8)
RUN(int, int32)
RUN(int64, int64)
RUN(Half, float16)
RUN(float, float32)
RUN(double, float64)
"""
DTYPES = ["uint8", "int8", "int32", "int64", "float16", "float32", "float64"]
SIZES = [0, 1, 7, 16, 100, 1027]


class Copies(ctypes.Structure):
    _fields_ = [
        ("to", ctypes.c_void_p * CAPACITY),
        ("of", ctypes.c_void_p * CAPACITY),
        ("bytes", ctypes.c_size_t * CAPACITY),
    ]


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kernels")
    source, library = folder / "kernels.cc", folder / "kernels.so"
    source.write_text(AS_CPU.replace("KERNELS", str(KERNELS)))
    command = ["g++", "-std=c++14", "-O1", "-mf16c", "-Wall", "-Werror", "-Wno-unused-function"]
    subprocess.run([*command, "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    return ctypes.CDLL(str(library))


def scaled(values, factor):
    """As the kernels compute: in float32 for the two short types, else in float64, rounded once."""
    wide = np.float32 if values.dtype in (np.float16, np.float32) else np.float64
    return (values.astype(wide) * wide(factor)).astype(values.dtype)


def arrays(dtype, shift):
    """Arrays of all SIZES, `shift` elements off any alignment."""
    rng = np.random.default_rng(1)
    return [rng.uniform(0, 50, size + shift).astype(dtype)[shift:] for size in SIZES]


def several(of, to):
    copies = Copies()
    for place, (source, target) in enumerate(zip(of, to)):
        copies.of[place], copies.to[place] = source.ctypes.data, target.ctypes.data
        copies.bytes[place] = source.nbytes
    return copies


@pytest.mark.parametrize("shift", [0, 1])
def test_many_arrays_are_copied(kernels, shift):
    of = arrays("uint8", shift)
    to = [np.zeros_like(array) for array in of]
    kernels.run_copy(ctypes.byref(several(of, to)), len(of))
    for source, target in zip(of, to):
        np.testing.assert_array_equal(target, source)


@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_are_scaled(kernels, dtype):
    for shift in (0, 1):
        of = arrays(dtype, shift)
        to = [np.zeros_like(array) for array in of]
        run = getattr(kernels, f"run_scale_many_{dtype}")
        run(ctypes.byref(several(of, to)), len(of), ctypes.c_double(0.75))
        for source, target in zip(of, to):
            np.testing.assert_array_equal(target, scaled(source, 0.75))
            alone = np.zeros_like(source)
            one = getattr(kernels, f"run_scale_{dtype}")
            data = [ctypes.c_void_p(array.ctypes.data) for array in (source, alone)]
            one(*data, ctypes.c_int64(source.size), ctypes.c_double(0.75))
            np.testing.assert_array_equal(alone, scaled(source, 0.75))


def test_the_structure_is_horovods(kernels):
    assert ctypes.sizeof(Copies) == 3840  # its BatchedD2DParams, an argument of at most 4096 bytes
