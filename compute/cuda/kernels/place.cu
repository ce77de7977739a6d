// place: copies K and V of runs of tokens from chunks, anywhere in the GPU's or in pinned memory, to others, or to the scratch of
// attention, and turns K to other positions. One warp takes one head's K or V of one run in one layer, or all heads' of one of
// the short runs, which come first: what a warp waits for is then worth it. Warps take two of these each, so that blocks are
// short: others that are more urgent need not wait for long. Runs against memory bandwidth, or the bus. cosine and sine have a
// row for each part; where turned is 0, bits are copied.
//
// KV is the format, 0 or 1: keys in e4m3 cannot be turned.
// check: KV=1 KV_HEADS=2 DIM=128
// check: KV=0 KV_HEADS=1 DIM=6
// check: KV=1 KV_HEADS=3 DIM=80
#include "grebe.cuh"
#include "load.cuh"
#include "home.cuh"

#if KV > 1
#error "place: no such format"
#endif

struct __align__(16) Run {
  u8 *from, *to;
  int from_room, to_room; // tokens that the chunks have room for
  int from_token, to_token;
  int tokens, turned;
  int part, straight; // row of the angles; to is the scratch of attention, to_room its slots
};

#define HALF (DIM / 2)
#define ROW_BYTES (DIM * SIZE_OF(KV))
#if HALF % 8 == 0
#define STEP 8 // pairs that a thread takes together
typedef U4 Word;
DEVICE Word load_word(const u8* p, int i) { return load_once((const Word*)p + i); }
#else
#define STEP 1
typedef u32 Word;
DEVICE Word load_word(const u8* p, int i) { return ((const Word*)p)[i]; }
#endif
#define WORDS (ROW_BYTES / (int)sizeof(Word))
#define DEPTH 4 // loads in flight per thread
#define PAIRS (HALF / STEP) // steps of a vector
#define TURNS (KV == 0 ? 1 : 2) // of which so many are in flight per thread

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
      int i = min_i(at + 32 * d, words - 1); // no branch between the loads
      w[d] = load_word(v.from + i / each * v.from_head, i % each);
    }
#pragma unroll
    for (int d = 0; d < DEPTH; d++) {
      int i = at + 32 * d;
      if (i < words) ((Word*)(v.to + i / each * v.to_head))[i % each] = w[d];
    }
  }
}

// Some values that a thread turns: those of a step, as they are stored.
struct Values {
#if STEP == 8
  U4 w[SIZE_OF(KV) / 2];
#else
  float v;
#endif
};
DEVICE Values load_values(const u8* p, u64 at) {
  Values v;
#if STEP == 8
#pragma unroll
  for (int i = 0; i < SIZE_OF(KV) / 2; i++) v.w[i] = load_word(p + at * SIZE_OF(KV), i);
#else
  v.v = load1<KV>(p, at);
#endif
  return v;
}
DEVICE void open_values(const Values& v, float* to) {
#if STEP == 8
  load8<KV>(v.w, to);
#else
  to[0] = v.v;
#endif
}
DEVICE void store_values(u8* p, u64 at, const float* v) {
#if STEP == 8
  store8<KV>(p + at * SIZE_OF(KV), v);
#else
  store1<KV>(p, at, v[0]);
#endif
}
// The cosines, or sines, of a step; rows of them are aligned where steps are of 8.
DEVICE void load_angles(const float* p, float* v) {
#if STEP == 8
  load8<0>(p, v);
#else
  v[0] = p[0];
#endif
}

DEVICE void turn(const Vectors& v, const float* cosine, const float* sine, int lane) {
  int each = v.tokens * PAIRS, steps = v.heads * each;
  float c[STEP], n[STEP];
#if 32 % PAIRS == 0 // all steps of a thread are of the same pairs
  load_angles(cosine + lane % PAIRS * STEP, c);
  load_angles(sine + lane % PAIRS * STEP, n);
#endif
  for (int at = lane; at < steps; at += 32 * TURNS) {
    Values low[TURNS], high[TURNS];
#pragma unroll
    for (int d = 0; d < TURNS; d++) {
      int i = min_i(at + 32 * d, steps - 1);
      const u8* from = v.from + i / each * v.from_head;
      u64 value = (u64)(i % each / PAIRS) * DIM + i % PAIRS * STEP;
      low[d] = load_values(from, value);
      high[d] = load_values(from, value + HALF);
    }
#pragma unroll
    for (int d = 0; d < TURNS; d++) {
      int i = at + 32 * d;
      if (i < steps) {
        u8* to = v.to + i / each * v.to_head;
        u64 value = (u64)(i % each / PAIRS) * DIM + i % PAIRS * STEP;
        float a[STEP], b[STEP], x[STEP], y[STEP];
        open_values(low[d], a);
        open_values(high[d], b);
#if 32 % PAIRS != 0
        load_angles(cosine + i % PAIRS * STEP, c);
        load_angles(sine + i % PAIRS * STEP, n);
#endif
#pragma unroll
        for (int k = 0; k < STEP; k++) {
          x[k] = a[k] * c[k] - b[k] * n[k];
          y[k] = b[k] * c[k] + a[k] * n[k];
        }
        store_values(to, value, x);
        store_values(to, value + HALF, y);
      }
    }
  }
}

// Moves some heads of a run in a layer, keys' or values'.
DEVICE void move(const Run& r, int layer, int matrix, int heads, const float* cosine, const float* sine, int lane) {
  u64 to_head = head_bytes<KV>(r.to_room, ROW_BYTES), from_head = head_bytes<KV>(r.from_room, ROW_BYTES);
  int at = matrix; // of the scratch: [layer][head][k|v][slot][dim]
  if (r.straight) {
    at = matrix % KV_HEADS * 2 + matrix / KV_HEADS;
    to_head *= 2;
  }
  Vectors v = {head_of<KV>(r.to, r.to_room, layer, at, KV_HEADS, ROW_BYTES) + (u64)r.to_token * ROW_BYTES,
               head_of<KV>(r.from, r.from_room, layer, matrix, KV_HEADS, ROW_BYTES) + (u64)r.from_token * ROW_BYTES,
               to_head, from_head, r.tokens, heads};
  if (matrix < KV_HEADS && r.turned) turn(v, cosine + (u64)r.part * HALF, sine + (u64)r.part * HALF, lane);
  else copy(v, lane);
}

// The first of the runs, brief many, are short.
KERNEL void __launch_bounds__(256, 3) place(const Run* runs, int count, int brief, const float* cosine, const float* sine, int layer, int layers) {
  int lane = threadIdx.x & 31, warps = gridDim.x * 8, warp = blockIdx.x * 8 + (threadIdx.x >> 5);
  int shorts = brief * layers, longs = (count - brief) * layers * 2 * KV_HEADS;
  for (int i = warp; i < shorts; i += warps) {
    const Run r = runs[i % brief];
#pragma unroll 1
    for (int matrix = 0; matrix < 2 * KV_HEADS; matrix += KV_HEADS) move(r, layer + i / brief, matrix, KV_HEADS, cosine, sine, lane);
  }
  // Who had the least of the first begins with the next.
  for (int i = warps - 1 - warp; i < longs; i += warps) {
    int matrix = i % (2 * KV_HEADS), rest = i / (2 * KV_HEADS), n = count - brief;
    move(runs[brief + rest % n], layer + rest / n, matrix, 1, cosine, sine, lane);
  }
}
