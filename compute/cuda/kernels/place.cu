// place: copies K and V of runs of tokens from chunk to chunk, anywhere in the GPU's or in pinned memory, and turns K
// to other positions. One warp takes one head's K or V of one run in one layer, or all heads' of one of the short runs, which come
// first: what a warp waits for is then worth it. Runs against memory bandwidth, or the bus. cosine and sine have a row for
// each run; where turned is 0, bits are copied.
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

// Vectors are those of some heads' K or V in two chunks.
struct Vectors {
  u8* to;
  const u8* from;
  u64 to_head, from_head; // bytes from head to head
  int tokens, heads;
};

DEVICE void copy(const Vectors& v, int lane) {
  int each = v.tokens * WORDS, words = v.heads * each;
  for (int at = lane; at < words; at += 32 * DEPTH) {
    Word w[DEPTH];
#pragma unroll
    for (int d = 0; d < DEPTH; d++) {
      int i = at + 32 * d;
      if (i < words) w[d] = ((const Word*)(v.from + i / each * v.from_head))[i % each];
    }
#pragma unroll
    for (int d = 0; d < DEPTH; d++) {
      int i = at + 32 * d;
      if (i < words) ((Word*)(v.to + i / each * v.to_head))[i % each] = w[d];
    }
  }
}

DEVICE void turn(const Vectors& v, const float* cosine, const float* sine, int lane) {
  const int pairs = HALF / STEP;
  int each = v.tokens * pairs;
  for (int i = lane; i < v.heads * each; i += 32) {
    int at = i % pairs * STEP, head = i / each;
    u64 low = (u64)(i % each / pairs) * DIM + at, high = low + HALF;
    const u8* from = v.from + head * v.from_head;
    u8* to = v.to + head * v.to_head;
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

// Moves some heads of a run in a layer, keys' or values'.
DEVICE void move(const Run& r, int layer, int matrix, int heads, const float* cosine, const float* sine, int lane) {
  u64 to_head = head_bytes<KV>(r.to_room, ROW_BYTES), from_head = head_bytes<KV>(r.from_room, ROW_BYTES);
  Vectors v = {head_of<KV>(r.to, r.to_room, layer, matrix, KV_HEADS, ROW_BYTES) + (u64)r.to_token * ROW_BYTES,
               head_of<KV>(r.from, r.from_room, layer, matrix, KV_HEADS, ROW_BYTES) + (u64)r.from_token * ROW_BYTES,
               to_head, from_head, r.tokens, heads};
  if (matrix < KV_HEADS && r.turned) turn(v, cosine + (u64)r.part * HALF, sine + (u64)r.part * HALF, lane);
  else copy(v, lane);
}

// The first of the runs, brief many, are short.
KERNEL void __launch_bounds__(256, 4) place(const Run* runs, int count, int brief, const float* cosine, const float* sine, int layer, int layers) {
  int lane = threadIdx.x & 31, warps = gridDim.x * 8, warp = blockIdx.x * 8 + (threadIdx.x >> 5);
  int shorts = brief * layers, longs = (count - brief) * layers * 2 * KV_HEADS;
  for (int i = warp; i < shorts; i += warps) {
    const Run r = runs[i % brief];
    move(r, layer + i / brief, 0, KV_HEADS, cosine, sine, lane);
    move(r, layer + i / brief, KV_HEADS, KV_HEADS, cosine, sine, lane);
  }
  // Who had the least of the first begins with the next.
  for (int i = warps - 1 - warp; i < longs; i += warps) {
    int matrix = i % (2 * KV_HEADS), rest = i / (2 * KV_HEADS), n = count - brief;
    move(runs[brief + rest % n], layer + rest / n, matrix, 1, cosine, sine, lane);
  }
}
