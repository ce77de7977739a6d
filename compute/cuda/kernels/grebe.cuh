// What every kernel shares. There are no CUDA headers behind it: NVRTC knows the language by itself,
// and clang, which checks the kernels where no CUDA is installed, gets the few names that it lacks.
//
// GREBE_ARCH is 90 where Hopper's own instructions may be used and 80 for the plain path.
#pragma once

#ifndef GREBE_ARCH
#define GREBE_ARCH 80
#endif

#ifdef __clang__
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))
#define __constant__ __attribute__((constant))
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...) __attribute__((launch_bounds(__VA_ARGS__)))
#define __grid_constant__
#define GREBE_SREG(name, reg)                                        \
  struct name##_t {                                                  \
    struct axis_x { __device__ operator unsigned() const { return __nvvm_read_ptx_sreg_##reg##_x(); } } x; \
    struct axis_y { __device__ operator unsigned() const { return __nvvm_read_ptx_sreg_##reg##_y(); } } y; \
    struct axis_z { __device__ operator unsigned() const { return __nvvm_read_ptx_sreg_##reg##_z(); } } z; \
  };                                                                 \
  static const __device__ name##_t name;
GREBE_SREG(threadIdx, tid)
GREBE_SREG(blockIdx, ctaid)
GREBE_SREG(blockDim, ntid)
GREBE_SREG(gridDim, nctaid)
__device__ __forceinline__ void __syncwarp() { asm volatile("bar.warp.sync 0xffffffff;" ::: "memory"); }
#endif

#define KERNEL extern "C" __global__
#define DEVICE __device__ __forceinline__

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef u16 bf16; // the upper half of a float

struct __align__(8) F2 { float x, y; };
struct __align__(16) F4 { float x, y, z, w; };
struct __align__(8) U2 { u32 x, y; };
struct __align__(16) U4 { u32 x, y, z, w; };

// ---- numbers

DEVICE float bits_f(u32 v) { float f; asm("mov.b32 %0, %1;" : "=f"(f) : "r"(v)); return f; }
DEVICE u32 f_bits(float f) { u32 v; asm("mov.b32 %0, %1;" : "=r"(v) : "f"(f)); return v; }
DEVICE float from_bf16(bf16 v) { return bits_f((u32)v << 16); }
DEVICE float low_bf16(u32 v) { return bits_f(v << 16); }
DEVICE float high_bf16(u32 v) { return bits_f(v & 0xffff0000u); }
// Rounds to nearest, ties to even.
DEVICE bf16 to_bf16(float f) { u16 h; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(f)); return h; }
// Two values; lo is the one at the lower address.
DEVICE u32 pack_bf16(float lo, float hi) { u32 v; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(hi), "f"(lo)); return v; }
DEVICE float from_f16(u16 v) { float f; asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(v)); return f; }

DEVICE float exp2_fast(float x) { float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
DEVICE float exp_fast(float x) { return exp2_fast(x * 1.4426950408889634f); }
DEVICE float rcp_fast(float x) { float y; asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
DEVICE float rsqrt_exact(float x) {
  float y; // 1/√x: the square root and the quotient are each rounded once
  asm("sqrt.rn.f32 %0, %1;" : "=f"(y) : "f"(x));
  asm("rcp.rn.f32 %0, %1;" : "=f"(y) : "f"(y));
  return y;
}
DEVICE float silu(float x) { return x * rcp_fast(1.0f + exp_fast(-x)); }
DEVICE float abs_f(float a) { return bits_f(f_bits(a) & 0x7fffffffu); }
DEVICE float max_f(float a, float b) { float y; asm("max.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b)); return y; }
DEVICE int min_i(int a, int b) { return a < b ? a : b; }
DEVICE int max_i(int a, int b) { return a > b ? a : b; }

// ---- warps

DEVICE float shuffle_xor(float v, int mask) {
  float y;
  asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, 0xffffffff;" : "=f"(y) : "f"(v), "r"(mask));
  return y;
}
DEVICE float shuffle_from(float v, int lane) {
  float y;
  asm volatile("shfl.sync.idx.b32 %0, %1, %2, 31, 0xffffffff;" : "=f"(y) : "f"(v), "r"(lane));
  return y;
}
DEVICE float warp_sum(float v) {
#pragma unroll
  for (int m = 16; m > 0; m >>= 1) v += shuffle_xor(v, m);
  return v;
}
DEVICE float warp_max(float v) {
#pragma unroll
  for (int m = 16; m > 0; m >>= 1) v = max_f(v, shuffle_xor(v, m));
  return v;
}
// Sum over a block of up to 1,024 threads, all of which MUST call it; scratch holds 33 values.
DEVICE float block_sum(float v, float* scratch) {
  v = warp_sum(v);
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = (blockDim.x + 31) >> 5;
  if (lane == 0) scratch[warp] = v;
  __syncthreads();
  if (warp == 0) {
    float s = warp_sum(lane < warps ? scratch[lane] : 0.0f);
    if (lane == 0) scratch[32] = s;
  }
  __syncthreads();
  return scratch[32];
}

// ---- memory

DEVICE u32 shared_address(const void* p) {
  u64 a;
  asm("cvta.to.shared.u64 %0, %1;" : "=l"(a) : "l"(p));
  return (u32)a;
}
// 16 bytes that are read once.
DEVICE U4 load_once(const void* p) {
  U4 v;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
}

// ---- launches that overlap (driver.Launch.Overlap); both do nothing before Hopper

// Waits until what the kernel before this one wrote can be read.
DEVICE void wait_for_previous() {
#if GREBE_ARCH >= 90
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// Lets the kernel after this one start its prologue.
DEVICE void allow_next() {
#if GREBE_ARCH >= 90
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}
