// Reads and writes of eight values that lie together, aligned to 16 bytes. F is a
// compute.DType: 0 float, 1 bf16, 2 half. Single values may be e4m3, 3, without their scale.
#pragma once
#include "grebe.cuh"
#include "fp8.cuh"

template <int F>
DEVICE void load8(const void* p, float* v) {
  if (F == 0) {
    F4 a = ((const F4*)p)[0], b = ((const F4*)p)[1];
    v[0] = a.x; v[1] = a.y; v[2] = a.z; v[3] = a.w;
    v[4] = b.x; v[5] = b.y; v[6] = b.z; v[7] = b.w;
    return;
  }
  U4 a = *(const U4*)p;
  u32 w[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
  for (int i = 0; i < 4; i++) {
    v[2 * i] = F == 1 ? low_bf16(w[i]) : from_f16((u16)w[i]);
    v[2 * i + 1] = F == 1 ? high_bf16(w[i]) : from_f16((u16)(w[i] >> 16));
  }
}

template <int F>
DEVICE void store8(void* p, const float* v) {
  if (F == 0) {
    F4 a = {v[0], v[1], v[2], v[3]}, b = {v[4], v[5], v[6], v[7]};
    ((F4*)p)[0] = a;
    ((F4*)p)[1] = b;
    return;
  }
  U4 a = {pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]), pack_bf16(v[4], v[5]), pack_bf16(v[6], v[7])};
  *(U4*)p = a;
}

// One value.
template <int F>
DEVICE float load1(const void* p, u64 i) {
  if (F == FP8) return from_e4m3(((const u8*)p)[i]);
  return F == 0 ? ((const float*)p)[i] : from_bf16(((const bf16*)p)[i]);
}

template <int F>
DEVICE void store1(void* p, u64 i, float v) {
  if (F == 0) ((float*)p)[i] = v;
  else if (F == FP8) ((u8*)p)[i] = (u8)to_e4m3(v);
  else ((bf16*)p)[i] = to_bf16(v);
}
