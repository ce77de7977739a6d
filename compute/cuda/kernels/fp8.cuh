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

// The scale of a chunk whose first token's vector has the largest magnitude most.
DEVICE float scale_of(float most) {
  u32 bits = f_bits(most) & 0x7f800000u;
  return bits < 0x00800000u || bits > 0x7e000000u ? 1.0f : bits_f(bits);
}
