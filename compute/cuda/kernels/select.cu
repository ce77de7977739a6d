// select: one round of a beam search. Of all continuations of all beams it keeps the width best, exactly
// those that sorting them all would put first: by score, then the lower node. A continuation's score is
// its beam's plus the log-softmax of its logit over the beam's valid continuations, in double.
//
// The kernels run one after the other and need nothing from the host in between; blockIdx.y is the search.
//
//	select_scan   a block per beam: the normaliser; the best logit of each group of continuations (each
//	              thread has up to four groups of its continuations t, t + 256, …); the best score of all
//	select_count  a histogram of the groups' best scores, by how far they lie below the best of all
//	select_pick   a block per beam: the width-th best group bounds what can be kept from below; all
//	              continuations of the histogram's bins down to it are listed
//	select_keep   the rank of each listed one is the number of better ones; the kept are laid out in the
//	              order of their nodes, which are those of their parents' rows and then of their codes
//
// Bins have a relative width of 1/128, so that little more than width is listed however flat or peaked
// the logits are. Where very many are tied more than LIST would be listed: then one block finds the
// threshold bit by bit, and equals in the order of their nodes; that is right and slow.
//
// MOST is the largest width. Limit: reading the logits once.
// check: LOGITS_BF16=0 CODES_WIDE=0 MOST=1024
// check: LOGITS_BF16=1 CODES_WIDE=1 MOST=8192
#include "grebe.cuh"

#define SCAN 256  // threads of a beam's block
#define EACH 4    // most groups of a thread
#define SMALL 8   // continuations of a group, or a multiple where a beam has many
#define TOGETHER 4 // beams of a block of select_count
#define KEEP 512  // threads of a block of select_keep
#define LIST (MOST < 2048 ? 16384 : 8 * MOST)
#define BINS 2304
#define FEW 16    // with fewer beams every continuation is counted, not groups

#if LOGITS_BF16
typedef bf16 Logit;
DEVICE float value(Logit v) { return from_bf16(v); }
#else
typedef float Logit;
DEVICE float value(Logit v) { return v; }
#endif
#if CODES_WIDE
typedef u32 Code;
#else
typedef u16 Code;
#endif

struct Head { // of a round's beams
  int count;
  int failed; // a logit was NaN or +Inf, in this round or before
};

struct __align__(16) Candidate {
  double score;
  u32 node;
  int row;
};

struct __align__(16) Row { // what select_scan found out about a beam
  double score, norm;
  u32 first; // node of the first continuation
  int n;
};

struct Bound { // of the continuations of a beam that compete
  float least; // those with a larger logit do, and those with this one
  int last;    // up to this continuation

  DEVICE bool has(float v, int i) const { return v > least || (v == least && i <= last); }
};

struct Beams {
  Head* head;
  double* scores;
  u32* nodes;
  int* parents; // rows of the round before
  int* codes;
};

struct Scratch { // zero before the first round; every round leaves it so
  u32 listed;
  u32 finished; // blocks of select_keep
  u32 failed;
  u32 pad;
  u64 best; // score, ordered
  u64 pad2;
  u32 bins[BINS];
  Candidate kept[MOST];
  Candidate list[LIST];
};

struct Search {
  const Logit* logits; // a row per beam
  const u32* starts;   // children of node n are the nodes starts[n] … starts[n+1]-1
  const Code* from;    // code of each of these nodes
  const u32* alive;    // a bit for each of them: may it be kept? null: all may
  const u32* dead;     // those that may not, ascending
  Beams in, out;
  Scratch* scratch;
  float* maxes;  // EACH·SCAN per beam
  Row* rows;     // per beam
  Bound* bounds; // per beam, if limit is not 0
  int stride;    // of logits
  int size;      // codes of the level
  int width;
  int deads;
  int limit; // most continuations of a beam that are kept; 0: all
};

// ---- what clang has no names for

DEVICE u32 add_global(u32* p, u32 v) { u32 o; asm volatile("atom.global.add.u32 %0, [%1], %2;" : "=r"(o) : "l"(p), "r"(v) : "memory"); return o; }
DEVICE void max_global(u64* p, u64 v) { asm volatile("red.global.max.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory"); }
DEVICE u32 add_shared(u32* p, u32 v) { u32 o; asm volatile("atom.shared.add.u32 %0, [%1], %2;" : "=r"(o) : "r"(shared_address(p)), "r"(v) : "memory"); return o; }
DEVICE void fence() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
DEVICE u32 ballot(bool b) { u32 v; asm volatile("{ .reg .pred p; setp.ne.u32 p, %1, 0; vote.sync.ballot.b32 %0, p, 0xffffffff; }" : "=r"(v) : "r"((u32)b)); return v; }
DEVICE int ones(u32 v) { int n; asm("popc.b32 %0, %1;" : "=r"(n) : "r"(v)); return n; }
DEVICE u32 shift_up(u32 v, int by) { u32 y; asm volatile("shfl.sync.up.b32 %0, %1, %2, 0, 0xffffffff;" : "=r"(y) : "r"(v), "r"(by)); return y; }
DEVICE u32 swap_u(u32 v, int mask) { u32 y; asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, 0xffffffff;" : "=r"(y) : "r"(v), "r"(mask)); return y; }
DEVICE u64 d_bits(double v) { u64 b; asm("mov.b64 %0, %1;" : "=l"(b) : "d"(v)); return b; }
DEVICE double bits_d(u64 b) { double v; asm("mov.b64 %0, %1;" : "=d"(v) : "l"(b)); return v; }

// ---- numbers

constexpr u32 minusInf = 0xff800000u;

// The order of doubles as integers.
DEVICE u64 ordered(double v) { u64 b = d_bits(v); return b >> 63 ? ~b : b | (u64)1 << 63; }
DEVICE double unordered(u64 b) { return bits_d(b >> 63 ? b & ~((u64)1 << 63) : ~b); }

// The natural logarithm of a normal number, to 1e-12. log(1) is 0.
DEVICE double logarithm(double v) {
  u64 b = d_bits(v);
  int e = (int)(b >> 52) - 1023;
  double m = bits_d((b & 0xfffffffffffffull) | (u64)1023 << 52);
  if (m > 1.4142135623730951) m *= 0.5, e++;
  double t = (m - 1) / (m + 1), q = t * t, p = 1.0 / 21;
#pragma unroll
  for (int i = 19; i > 0; i -= 2) p = p * q + 1.0 / i;
  return e * 0.6931471805599453 + 2 * t * p;
}

// ---- beams and continuations

struct Reader { // of a beam's logits
  const Logit* logits;
  const Code* codes; // null: all codes are valid
  int n;

  DEVICE Reader(const Search& s, int row, const Row& r)
      : logits(s.logits + (u64)row * s.stride), codes(r.n == s.size ? (const Code*)0 : s.from + r.first), n(r.n) {}

  // Reads N continuations, step apart; beyond the last there is -Inf. There are no branches, so that all
  // loads are under way together.
  template <int N> DEVICE void read(float (&v)[N], int first, int step) const {
    int at[N];
#pragma unroll
    for (int i = 0; i < N; i++) at[i] = min_i(first + i * step, n - 1);
    if (codes) {
#pragma unroll
      for (int i = 0; i < N; i++) at[i] = (int)codes[at[i]];
    }
#pragma unroll
    for (int i = 0; i < N; i++) v[i] = value(logits[at[i]]);
#pragma unroll
    for (int i = 0; i < N; i++) v[i] = first + i * step < n ? v[i] : bits_f(minusInf);
  }
};

// Score of a continuation. It never falls as the logit grows.
DEVICE double continued(const Row& r, float logit) { return r.score + ((double)logit - r.norm); }

// Continuations of a group of a thread, of a beam with n: a multiple of SMALL.
DEVICE int group_size(int n) { return (max_i(n, 1) + SMALL * EACH * SCAN - 1) / (SMALL * EACH * SCAN) * SMALL; }
DEVICE int group_count(int n) { return (n + group_size(n) * SCAN - 1) / (group_size(n) * SCAN); }

DEVICE bool may_be_kept(const Search& s, u32 node) {
  if (s.alive && !(s.alive[node >> 5] >> (node & 31) & 1)) return false;
  int lo = 0, hi = s.deads;
  while (lo < hi) {
    int m = (lo + hi) / 2;
    if (s.dead[m] < node) lo = m + 1;
    else hi = m;
  }
  return lo == s.deads || s.dead[lo] != node;
}

constexpr int unbounded = 0x7fffffff;

DEVICE Bound bound_of(const Search& s, int row) {
  if (s.limit) return s.bounds[row];
  return Bound{bits_f(minusInf), unbounded};
}

// How far a score lies below the best, as a bin; no lower score has a lower bin.
DEVICE int bin_of(double best, double score) {
  int b = (int)(f_bits((float)(best - score)) >> 16) - ((127 - 12) << 7);
  return min_i(max_i(b, 0), BINS - 1);
}

// ---- the continuations of a beam that compete

// The order of floats that are numbers, as integers. Both zeros are the same.
DEVICE u32 ordered_float(float v) {
  u32 b = v == 0 ? 0 : f_bits(v);
  return b >> 31 ? ~b : b | 0x80000000u;
}
DEVICE float unordered_float(u32 b) { return bits_f(b >> 31 ? b & 0x7fffffffu : ~b); }

// Calls f with SMALL logits of every thread at a time, and with the number of the first; they are SCAN apart.
template <typename F> DEVICE void each_few(const Reader& reader, F f) {
  for (int base = 0; base < reader.n; base += SMALL * SCAN) {
    float v[SMALL];
    reader.read(v, base + (int)threadIdx.x, SCAN);
    f(v, base + (int)threadIdx.x);
  }
}

KERNEL void __launch_bounds__(SCAN) select_limit(const Search* all) {
  wait_for_previous();
  allow_next();
  const Search s = all[blockIdx.y];
  __shared__ u32 bins[256];
  __shared__ u32 counts[SCAN / 32];
  __shared__ u32 digit, left, equals;
  __shared__ int last;
  const float none = bits_f(minusInf);
  int row = blockIdx.x, t = threadIdx.x, lane = t & 31, warp = t >> 5;
  if (!s.limit || row >= s.in.head->count) return;
  u32 node = s.in.nodes[row];
  Row r;
  r.first = s.starts[node];
  r.n = (int)(s.starts[node + 1] - r.first);
  if (t == 0) s.bounds[row] = Bound{none, unbounded};
  if (r.n <= s.limit) return;
  Reader reader(s, row, r);
  u32 prefix = 0, mask = 0;
  if (t == 0) left = s.limit;
  for (int shift = 24; shift >= 0; shift -= 8) {
    bins[t] = 0;
    __syncthreads();
    each_few(reader, [&](const float (&v)[SMALL], int first) {
#pragma unroll
      for (int i = 0; i < SMALL; i++) {
        u32 key = ordered_float(v[i]);
        if (v[i] > none && (key & mask) == prefix && may_be_kept(s, r.first + first + i * SCAN)) add_shared(&bins[key >> shift & 255], 1);
      }
    });
    __syncthreads();
    if (t == 0) {
      u32 d = 255;
      while (d > 0 && bins[d] < left) left -= bins[d--];
      digit = d, equals = bins[d];
    }
    __syncthreads();
    if (equals < left) return; // fewer than the limit may be kept: all compete
    prefix |= digit << shift;
    mask |= (u32)255 << shift;
  }
  if (equals == left) {
    if (t == 0) s.bounds[row] = Bound{unordered_float(prefix), unbounded};
    return;
  }
  u32 seen = 0, wanted = left; // of several with the last logit, those with lower nodes
  each_few(reader, [&](const float (&v)[SMALL], int first) {
    for (int i = 0; i < SMALL; i++) {
      bool is = v[i] > none && ordered_float(v[i]) == prefix && may_be_kept(s, r.first + first + i * SCAN);
      u32 mine = ballot(is);
      if (lane == 0) counts[warp] = ones(mine);
      __syncthreads();
      u32 before = seen + ones(mine & ((1u << lane) - 1));
      for (int w = 0; w < SCAN / 32; w++) {
        if (w < warp) before += counts[w];
        seen += counts[w];
      }
      if (is && before + 1 == wanted) last = first + i * SCAN;
      __syncthreads();
    }
  });
  if (t == 0) s.bounds[row] = Bound{unordered_float(prefix), last};
}

// ---- the normaliser

struct Sum {
  float max, sum; // of exp(logit - max)

  DEVICE void add(float m, float v) {
    if (m > max) {
      sum = sum * exp_fast(max - m) + v;
      max = m;
    } else if (m > bits_f(minusInf)) {
      sum += v * exp_fast(m - max);
    }
  }
};

// All threads get the sum of all. scratch holds SCAN/32 values.
DEVICE Sum all_of(Sum s, Sum* scratch) {
#pragma unroll
  for (int m = 16; m > 0; m >>= 1) s.add(shuffle_xor(s.max, m), shuffle_xor(s.sum, m));
  if ((threadIdx.x & 31) == 0) scratch[threadIdx.x >> 5] = s;
  __syncthreads();
  s = scratch[0];
  for (int w = 1; w < SCAN / 32; w++) s.add(scratch[w].max, scratch[w].sum);
  return s;
}

KERNEL void __launch_bounds__(SCAN, 4) select_scan(const Search* all) {
  wait_for_previous();
  allow_next();
  const Search s = all[blockIdx.y];
  __shared__ Sum sums[SCAN / 32];
  __shared__ float best[SCAN / 32];
  const float none = bits_f(minusInf);
  int row = blockIdx.x, t = threadIdx.x, count = s.in.head->count;
  u32 node = s.in.nodes[row]; // there is room for as many beams as blocks
  Row r;
  r.score = s.in.scores[row];
  if (row >= count) return;
  r.first = s.starts[node];
  r.n = (int)(s.starts[node + 1] - r.first);
  Reader reader(s, row, r);
  Bound bound = bound_of(s, row);
  bool masked = s.alive || s.limit;
  float* maxes = s.maxes + (u64)row * (EACH * SCAN) + t;
  Sum sum = {none, 0};
  float top = none, most = none; // of the group, of all
  bool bad = false;
  int size = group_size(r.n), group = 0, end = size;
  for (int k = 0; k * SCAN < r.n; k += 2 * SMALL) {
    float v[2 * SMALL], m = none;
    reader.read(v, t + k * SCAN, SCAN);
#pragma unroll
    for (int i = 0; i < 2 * SMALL; i++) {
      m = max_f(m, v[i]);
      bad |= !(v[i] < bits_f(0x7f800000u));
    }
    if (m > sum.max) sum.sum *= exp_fast(sum.max - m), sum.max = m;
    if (m > none) {
#pragma unroll
      for (int i = 0; i < 2 * SMALL; i++) sum.sum += exp_fast(v[i] - sum.max);
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
      if (k + h * SMALL == end) { // the same in all threads
        maxes[group++ * SCAN] = top;
        end += size, top = none;
      }
#pragma unroll
      for (int i = h * SMALL; i < (h + 1) * SMALL; i++) {
        if (masked && v[i] > top) {
          int at = t + (k + i) * SCAN;
          u32 n = r.first + at;
          if (!bound.has(v[i], at) || (s.alive && !(s.alive[n >> 5] >> (n & 31) & 1))) v[i] = none;
        }
        top = max_f(top, v[i]);
      }
      most = max_f(most, top);
    }
  }
  if (group < EACH) maxes[group * SCAN] = top;
  most = warp_max(most);
  if ((t & 31) == 0) best[t >> 5] = most;
  sum = all_of(sum, sums); // which also makes best visible
  if (bad) s.scratch->failed = 1;
  if (t != 0) return;
  for (int w = 1; w < SCAN / 32; w++) most = max_f(most, best[w]);
  r.norm = sum.sum > 0 ? (double)sum.max + logarithm(sum.sum) : 0;
  s.rows[row] = r;
  if (most > none) max_global(&s.scratch->best, ordered(continued(r, most)));
}

// ---- the bound

// Adds all continuations of a beam to the bins.
DEVICE void count_all(const Search& s, int row, double best, u32* bins) {
  const float none = bits_f(minusInf);
  Row r = s.rows[row];
  Reader reader(s, row, r);
  Bound bound = bound_of(s, row);
  for (int base = threadIdx.x; base < r.n; base += 2 * SMALL * SCAN) {
    float v[2 * SMALL];
    reader.read(v, base, SCAN);
#pragma unroll
    for (int i = 0; i < 2 * SMALL; i++)
      if (v[i] > none && bound.has(v[i], base + i * SCAN) && (!s.alive || may_be_kept(s, r.first + base + i * SCAN)))
        add_shared(&bins[bin_of(best, continued(r, v[i]))], 1);
  }
}

KERNEL void __launch_bounds__(SCAN) select_count(const Search* all) {
  wait_for_previous();
  allow_next();
  const Search s = all[blockIdx.y];
  __shared__ u32 bins[BINS];
  const float none = bits_f(minusInf);
  int count = s.in.head->count, t = threadIdx.x, first = blockIdx.x * TOGETHER;
  double best = unordered(s.scratch->best);
  if (first >= count) return;
  for (int i = t; i < BINS; i += SCAN) bins[i] = 0;
  __syncthreads();
  if (count <= FEW) {
    for (int row = first; row < min_i(first + TOGETHER, count); row++) count_all(s, row, best, bins);
  } else {
    Row r[TOGETHER];
    float top[TOGETHER][EACH];
#pragma unroll
    for (int i = 0; i < TOGETHER; i++) {
      int row = min_i(first + i, count - 1);
      r[i] = s.rows[row];
#pragma unroll
      for (int g = 0; g < EACH; g++) top[i][g] = s.maxes[((u64)row * EACH + g) * SCAN + t];
    }
#pragma unroll
    for (int i = 0; i < TOGETHER; i++) {
      int groups = first + i < count ? group_count(r[i].n) : 0;
#pragma unroll
      for (int g = 0; g < EACH; g++)
        if (g < groups && top[i][g] > none) add_shared(&bins[bin_of(best, continued(r[i], top[i][g]))], 1);
    }
  }
  __syncthreads();
  for (int i = t; i < BINS; i += SCAN)
    if (bins[i]) add_global(&s.scratch->bins[i], bins[i]);
}

// Returns to all threads of a block of SCAN the first bin down to which there are enough. As many of the
// counted may be dead as are in all.
DEVICE int last_bin(const Search& s) {
  constexpr int each = BINS / SCAN;
  __shared__ u32 sums[SCAN / 32];
  __shared__ int found;
  int t = threadIdx.x, lane = t & 31;
  u32 own[each], sum = 0;
#pragma unroll
  for (int i = 0; i < each; i++) sum += own[i] = s.scratch->bins[t * each + i];
  u32 through = sum;
#pragma unroll
  for (int by = 1; by < 32; by <<= 1) {
    u32 v = shift_up(through, by);
    if (lane >= by) through += v;
  }
  if (lane == 31) sums[t >> 5] = through;
  if (t == 0) found = BINS - 1;
  __syncthreads();
  for (int w = 0; w < t >> 5; w++) through += sums[w];
  u32 need = (u32)(s.width + s.deads), before = through - sum;
  if (before < need && through >= need) {
    int i = 0;
    for (; i < each - 1 && before + own[i] < need; i++) before += own[i];
    found = t * each + i;
  }
  __syncthreads();
  return found;
}

KERNEL void __launch_bounds__(SCAN) select_pick(const Search* all) {
  wait_for_previous();
  allow_next();
  const Search s = all[blockIdx.y];
  const float none = bits_f(minusInf);
  int row = blockIdx.x, t = threadIdx.x, count = s.in.head->count;
  double best = unordered(s.scratch->best);
  Row r = s.rows[row];
  float top[EACH];
#pragma unroll
  for (int g = 0; g < EACH; g++) top[g] = s.maxes[((u64)row * EACH + g) * SCAN + t];
  if (row >= count) return;
  int last = last_bin(s), size = group_size(r.n), groups = group_count(r.n);
  Reader reader(s, row, r);
  Bound bound = bound_of(s, row);
#pragma unroll
  for (int g = 0; g < EACH; g++) {
    if (g >= groups || !(top[g] > none) || bin_of(best, continued(r, top[g])) > last) continue;
    for (int k = g * size; k < (g + 1) * size; k += SMALL) {
      float v[SMALL];
      reader.read(v, t + k * SCAN, SCAN);
#pragma unroll
      for (int i = 0; i < SMALL; i++) {
        if (!(v[i] > none) || !bound.has(v[i], t + (k + i) * SCAN)) continue;
        Candidate c = {continued(r, v[i]), r.first + t + (k + i) * SCAN, row};
        if (bin_of(best, c.score) > last || !may_be_kept(s, c.node)) continue;
        u32 at = add_global(&s.scratch->listed, 1);
        if (at < LIST) s.scratch->list[at] = c;
      }
    }
  }
}

// ---- the kept

DEVICE bool better(const Candidate& a, const Candidate& b) { return (a.score > b.score) | ((a.score == b.score) & (a.node < b.node)); }

// Ranks P listed candidates per warp.
template <int P> DEVICE void rank(const Search& s, int n) {
  int lane = threadIdx.x & 31, warps = gridDim.x * (KEEP / 32);
  const Candidate* list = s.scratch->list;
  for (int base = (blockIdx.x * (KEEP / 32) + (threadIdx.x >> 5)) * P; base < n; base += warps * P) {
    Candidate own[P];
    u32 ranks[P];
#pragma unroll
    for (int p = 0; p < P; p++) {
      own[p] = list[min_i(base + p, n - 1)];
      ranks[p] = 0;
    }
#pragma unroll 8
    for (int i = lane; i < n; i += 32) {
      Candidate c = list[i];
#pragma unroll
      for (int p = 0; p < P; p++) ranks[p] += better(c, own[p]);
    }
#pragma unroll
    for (int p = 0; p < P; p++) {
#pragma unroll
      for (int m = 16; m > 0; m >>= 1) ranks[p] += swap_u(ranks[p], m);
      if (lane == 0 && base + p < n && (int)ranks[p] < s.width) s.scratch->kept[ranks[p]] = own[p];
    }
  }
}

// One block goes through all continuations in the order of their nodes, until f returns false to all.
template <typename F> DEVICE void each_continuation(const Search& s, F f) {
  int count = s.in.head->count;
  for (int row = 0; row < count; row++) {
    Row r = s.rows[row];
    Reader reader(s, row, r);
    Bound bound = bound_of(s, row);
    for (int base = threadIdx.x; base - (int)threadIdx.x < r.n; base += SMALL * KEEP) {
      float v[SMALL];
      reader.read(v, base, KEEP);
#pragma unroll
      for (int i = 0; i < SMALL; i++) {
        Candidate c = {continued(r, v[i]), r.first + base + i * KEEP, row};
        if (!f(c, v[i] > bits_f(minusInf) && bound.has(v[i], base + i * KEEP) && may_be_kept(s, c.node))) return;
      }
    }
  }
}

// The kept, in no order, in the unlikely case that too many are tied. One block does it.
DEVICE void keep_by_bits(const Search& s) {
  __shared__ u32 bins[256];
  __shared__ u32 counts[KEEP / 32];
  __shared__ u32 placed, left, digit;
  int t = threadIdx.x, lane = t & 31, warp = t >> 5;
  u64 prefix = 0, mask = 0;
  if (t == 0) left = s.width, placed = 0;
  for (int shift = 56; shift >= 0; shift -= 8) {
    if (t < 256) bins[t] = 0;
    __syncthreads();
    each_continuation(s, [&](const Candidate& c, bool is) {
      u64 key = ordered(c.score);
      if (is && (key & mask) == prefix) add_shared(&bins[key >> shift & 255], 1);
      return true;
    });
    __syncthreads();
    if (t == 0) {
      u32 d = 255;
      while (bins[d] < left) left -= bins[d--];
      digit = d;
    }
    __syncthreads();
    prefix |= (u64)digit << shift;
    mask |= (u64)255 << shift;
  }
  u32 equals = 0, wanted = left, width = s.width;
  each_continuation(s, [&](const Candidate& c, bool is) {
    u64 key = ordered(c.score);
    u32 mine = ballot(is && key == prefix);
    if (lane == 0) counts[warp] = ones(mine);
    __syncthreads();
    u32 before = equals + ones(mine & ((1u << lane) - 1));
    for (int w = 0; w < KEEP / 32; w++) {
      if (w < warp) before += counts[w];
      equals += counts[w];
    }
    if (is && (key > prefix || (key == prefix && before < wanted))) {
      u32 at = add_shared(&placed, 1);
      s.scratch->kept[at] = c;
    }
    __syncthreads();
    return equals < wanted || placed < width;
  });
}

// Sorts n keys, a power of two. Steps up to 32 stay among the 64 keys of a warp.
DEVICE void sort(u64* keys, int n) {
  int last = n;
  for (int size = 2; size <= n; size <<= 1) {
    for (int step = size >> 1; step > 0; step >>= 1) {
      if (step > 32 || last > 32) __syncthreads();
      else __syncwarp();
      last = step;
      for (int i = threadIdx.x; i < n / 2; i += KEEP) {
        int a = 2 * i - (i & (step - 1)), b = a + step;
        u64 x = keys[a], y = keys[b];
        if ((x > y) == ((a & size) == 0)) keys[a] = y, keys[b] = x;
      }
    }
  }
  __syncthreads();
}

// Lays out the kept as the next round's beams, none after a failure, and clears the scratch.
DEVICE void lay(const Search& s, int kept) {
  extern __shared__ u64 keys[]; // MOST of them
  int failed = s.in.head->failed | (int)s.scratch->failed;
  if (failed) kept = 0; // scores that are no numbers have no ranks
  int t = threadIdx.x, n = 2;
  while (n < kept) n <<= 1;
  for (int i = t; i < n; i += KEEP) keys[i] = i < kept ? (u64)s.scratch->kept[i].node << 32 | i : ~(u64)0;
  sort(keys, n);
  for (int i = t; i < kept; i += KEEP) {
    Candidate c = s.scratch->kept[(u32)keys[i]];
    s.out.scores[i] = c.score;
    s.out.nodes[i] = c.node;
    s.out.parents[i] = c.row;
    s.out.codes[i] = (int)s.from[c.node];
  }
  if (t == 0) {
    s.out.head->count = kept;
    s.out.head->failed = failed;
  }
  __syncthreads();
  for (int i = t; i < BINS; i += KEEP) s.scratch->bins[i] = 0;
  if (t == 0) s.scratch->listed = 0, s.scratch->finished = 0, s.scratch->failed = 0, s.scratch->best = 0;
}

KERNEL void __launch_bounds__(KEEP, 1) select_keep(const Search* all) {
  wait_for_previous();
  allow_next();
  const Search s = all[blockIdx.y];
  __shared__ u32 ticket;
  int n = (int)s.scratch->listed;
  if (n > LIST) {
    if (blockIdx.x == 0) keep_by_bits(s);
  } else if (n > 4096) {
    rank<16>(s, n);
  } else if (n > 1024) {
    rank<4>(s, n);
  } else {
    rank<1>(s, n);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    fence();
    ticket = add_global(&s.scratch->finished, 1);
    fence();
  }
  __syncthreads();
  if (ticket != gridDim.x - 1) return;
  lay(s, min_i(n, s.width));
}
