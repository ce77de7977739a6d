// place: copies K and V of runs of tokens from chunk to chunk, anywhere in the GPU's or in pinned memory, and turns K
// to other positions. One warp takes one head's K or V of one run in one layer; runs against memory bandwidth, or the
// bus. cosine and sine have a row for each run; where turned is 0, bits are copied.
//
// KV is the format, 0 or 1.
// check: KV=1 KV_HEADS=2 DIM=128
// check: KV=0 KV_HEADS=1 DIM=6
// check: KV=1 KV_HEADS=3 DIM=80
#include "grebe.cuh"
#include "load.cuh"
#include "home.cuh"

struct __align__(16) Run {
  u8 *from, *to;
  int from_room, to_room; // tokens that the chunks have room for
  int from_token, to_token;
  int tokens, turned;
  int part, zero; // row of the angles
};

#define HALF (DIM / 2)
#define ROW_BYTES (DIM * SIZE_OF(KV))
#if HALF % 8 == 0
#define STEP 8 // pairs that a thread takes together
typedef U4 Word;
#else
#define STEP 1
typedef u32 Word;
#endif
#define WORDS (ROW_BYTES / (int)sizeof(Word))
#define DEPTH 4 // loads in flight per thread

DEVICE void copy(Word* to, const Word* from, int words, int lane) {
  for (int at = lane; at < words; at += 32 * DEPTH) {
    Word v[DEPTH];
#pragma unroll
    for (int d = 0; d < DEPTH; d++)
      if (at + 32 * d < words) v[d] = from[at + 32 * d];
#pragma unroll
    for (int d = 0; d < DEPTH; d++)
      if (at + 32 * d < words) to[at + 32 * d] = v[d];
  }
}

DEVICE void turn(u8* to, const u8* from, int tokens, const float* cosine, const float* sine, int lane) {
  const int pairs = HALF / STEP;
  for (int i = lane; i < tokens * pairs; i += 32) {
    int at = i % pairs * STEP;
    u64 low = (u64)(i / pairs) * DIM + at, high = low + HALF;
    float a[STEP], b[STEP], x[STEP], y[STEP];
#if STEP == 8
    load8<KV>(from + low * SIZE_OF(KV), a);
    load8<KV>(from + high * SIZE_OF(KV), b);
#else
    a[0] = load1<KV>(from, low);
    b[0] = load1<KV>(from, high);
#endif
#pragma unroll
    for (int k = 0; k < STEP; k++) {
      float c = cosine[at + k], n = sine[at + k];
      x[k] = a[k] * c - b[k] * n;
      y[k] = b[k] * c + a[k] * n;
    }
#if STEP == 8
    store8<KV>(to + low * SIZE_OF(KV), x);
    store8<KV>(to + high * SIZE_OF(KV), y);
#else
    store1<KV>(to, low, x[0]);
    store1<KV>(to, high, y[0]);
#endif
  }
}

KERNEL void __launch_bounds__(256) place(const Run* runs, int count, const float* cosine, const float* sine, int layer, int layers) {
  int lane = threadIdx.x & 31, warps = gridDim.x * 8;
  int total = count * layers * 2 * KV_HEADS;
  for (int i = blockIdx.x * 8 + (threadIdx.x >> 5); i < total; i += warps) {
    int matrix = i % (2 * KV_HEADS), rest = i / (2 * KV_HEADS), l = layer + rest / count;
    const Run r = runs[rest % count];
    const u8* from = head_of<KV>(r.from, r.from_room, l, matrix, KV_HEADS, ROW_BYTES) + (u64)r.from_token * ROW_BYTES;
    u8* to = head_of<KV>(r.to, r.to_room, l, matrix, KV_HEADS, ROW_BYTES) + (u64)r.to_token * ROW_BYTES;
    if (matrix < KV_HEADS && r.turned) turn(to, from, r.tokens, cosine + (u64)r.part * HALF, sine + (u64)r.part * HALF, lane);
    else copy((Word*)to, (const Word*)from, r.tokens * WORDS, lane);
  }
}
