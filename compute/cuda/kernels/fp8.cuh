// Numbers in e4m3, and where a head's keys or values of a chunk lie and how they are scaled, as
// compute.Chunk says. KV is the chunks' format, a compute.DType: 0 float, 1 bf16, 3 e4m3.
#pragma once
#include "grebe.cuh"

#define FP8 3
#define SIZE_OF(F) ((F) == 0 ? 4 : (F) == FP8 ? 1 : 2)
#define SCALE_BYTES(F) ((F) == FP8 ? 16 : 0)

// Bytes of a head's keys, or values, of one layer in a chunk for room tokens of bytes bytes each.
template <int F>
DEVICE u64 head_bytes(int room, int bytes) {
  u64 n = (u64)room * bytes;
  return F == FP8 ? SCALE_BYTES(F) + (n + 15) / 16 * 16 : n;
}

// The exponent and the mantissa are where those of a float are, with another bias.
DEVICE float from_e4m3(u32 v) {
  float f = bits_f((v & 127) << 20) * bits_f(0x7b800000u); // 2¹²⁰
  if ((v & 127) == 127) f = bits_f(0x7fc00000u);
  return v & 128 ? -f : f;
}

// Rounds to nearest, ties to even; what is larger than 448 becomes that, and NaN stays.
DEVICE u32 to_e4m3(float f) {
  u32 bits = f_bits(f), sign = bits >> 24 & 128;
  bits &= 0x7fffffffu;
  if (bits > 0x7f800000u) return sign | 127;
  if (bits >= 0x43e00000u) return sign | 126;
  if (bits < 0x3c800000u) return sign | (f_bits(bits_f(bits) + 16384.0f) & 15); // below 2⁻⁶ in steps of 2⁻⁹
  bits += 0x7ffffu + (bits >> 20 & 1);
  return sign | (bits >> 20) - (120 << 3);
}

// Four values, the first in the lowest byte.
DEVICE u32 pack_e4m3(const float* v) {
#if GREBE_ARCH >= 90
  u16 lo, hi;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(lo) : "f"(v[1]), "f"(v[0]));
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(hi) : "f"(v[3]), "f"(v[2]));
  return (u32)lo | (u32)hi << 16;
#else
  return to_e4m3(v[0]) | to_e4m3(v[1]) << 8 | to_e4m3(v[2]) << 16 | to_e4m3(v[3]) << 24;
#endif
}

// How a row of a product's input, or of weights, becomes e4m3, given its largest magnitude: as compute.Quantiser
// says.
struct Rounding {
  float scale, inverse;
};
DEVICE Rounding rounding(float largest) {
  Rounding r = {largest / 448.0f, 448.0f / largest};
  if (largest < bits_f(0x0d800000u)) r.scale = r.inverse = 0; // 2⁻¹⁰⁰
  if (!(largest <= bits_f(0x7f7fffffu))) r.scale = bits_f(0x7fc00000u), r.inverse = 0;
  return r;
}

// Eight values at p, aligned to 8 bytes, by a row's rounding.
DEVICE void store8_e4m3(void* p, const float* v, float inverse) {
  float w[8];
#pragma unroll
  for (int i = 0; i < 8; i++) w[i] = v[i] * inverse;
  *(U2*)p = U2{pack_e4m3(w), pack_e4m3(w + 4)};
}

// The larger one, or no number if one is none.
DEVICE float max_nan(float a, float b) { float y; asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b)); return y; }

// The largest magnitude of eight values and most.
DEVICE float largest8(const float* v, float most) {
#pragma unroll
  for (int i = 0; i < 8; i++) most = max_nan(most, abs_f(v[i]));
  return most;
}

// max_nan over a block of up to 1,024 threads, all of which MUST call it; scratch holds 33 values.
DEVICE float block_max(float v, float* scratch) {
#pragma unroll
  for (int m = 16; m > 0; m >>= 1) v = max_nan(v, shuffle_xor(v, m));
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = (blockDim.x + 31) >> 5;
  if (lane == 0) scratch[warp] = v;
  __syncthreads();
  if (warp == 0) {
    float s = lane < warps ? scratch[lane] : 0.0f;
#pragma unroll
    for (int m = 16; m > 0; m >>= 1) s = max_nan(s, shuffle_xor(s, m));
    if (lane == 0) scratch[32] = s;
  }
  __syncthreads();
  return scratch[32];
}

// The sum of one value and max_nan of another over a block, as block_max; scratch holds 66 values.
DEVICE void block_sum_max(float& sum, float& most, float* scratch) {
  sum = warp_sum(sum);
#pragma unroll
  for (int m = 16; m > 0; m >>= 1) most = max_nan(most, shuffle_xor(most, m));
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = (blockDim.x + 31) >> 5;
  if (lane == 0) scratch[warp] = sum, scratch[33 + warp] = most;
  __syncthreads();
  if (warp == 0) {
    sum = warp_sum(lane < warps ? scratch[lane] : 0.0f);
    most = lane < warps ? scratch[33 + lane] : 0.0f;
#pragma unroll
    for (int m = 16; m > 0; m >>= 1) most = max_nan(most, shuffle_xor(most, m));
    if (lane == 0) scratch[32] = sum, scratch[65] = most;
  }
  __syncthreads();
  sum = scratch[32], most = scratch[65];
}

// The scale of a chunk whose first token's vector has the largest magnitude most.
DEVICE float scale_of(float most) {
  u32 bits = f_bits(most) & 0x7f800000u;
  return bits < 0x00800000u || bits > 0x7e000000u ? 1.0f : bits_f(bits);
}
