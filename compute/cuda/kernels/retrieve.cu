// retrieve: the items whose vectors have the largest products with queries, exactly those that sorting all items by
// score and then by number would put first. All vectors are bf16, products are summed in float, in one order of
// dimensions whatever queries share a launch.
//
//	retrieve_scan   reads the vectors of a part of the items and lists those whose keys are above a query's bound
//	retrieve_best   a block per query: keeps the best of its list; the worst of these is the next part's bound
//
// The two take turns over parts that grow by a factor, so that each part is expected to list a few thousand keys. A
// key is a score, ordered as an integer, and the complement of the item's number below it: keys are unique, equal
// scores go by the lower item, and which keys are listed is all that matters, not their order. All keys of the first
// part are listed, at their items' places. Parts take groups of items from all over the catalog, so that a catalog in
// the order of its scores is as good as any.
//
// A bound need not be the worst of the k best so far: with the key at an earlier place fewer keys are listed, and parts
// may grow faster. All keys above it are listed. So the answer is exact if its worst key is not below the last bound,
// which retrieve_best checks; where it is, State.unsure says so, and the host begins again with bounds at place k.
//
// A list has three places: for the MOST keys that were kept, for keys of each block of a scan, which counts its own in
// shared memory, and for keys of all blocks. What a block has no room for goes to the last, by a counter that all blocks
// share: many at a time would wait for each other there.
//
// If the last place would be too small for any query, retrieve_best keeps nothing of that part for any of them and
// says so in State.failed; kernels behind it do nothing. The host then goes on from that part, in pieces that fit.
//
// A warp computes TILE items × QUERIES queries at a time. It copies the items' vectors to a ring of its own in shared
// memory, STAGES pieces of CHUNK dimensions, so warps never wait for each other. The queries stay in shared memory.
// Scores stay in registers; what passes the bound is looked at once more and goes through a short queue to the list.
//
// Limit: reading the vectors once from memory. With 64 queries, shared memory and tensor cores are about half busy.
// check: QUERIES=16 STAGES=4
// check: QUERIES=32 STAGES=4
// check: QUERIES=64 STAGES=3
#include "grebe.cuh"

#define WARPS 8
#define TILE 32       // items of a warp
#define GROUP 8       // tiles that lie together
#define CHUNK 64      // dimensions of a stage
#define ROW_BYTES 144 // of a row of a stage: eight rows begin in different banks
#define STAGE_BYTES (TILE * ROW_BYTES)
#define QUEUE 64
#define LIST 16384
#define MOST 1024 // largest k
#define OWN 10240 // keys that the blocks have room for
#define SHARED (MOST + OWN)
#define ROOM (LIST - SHARED)
#define LEAST_PLACE 64
#define ALL 64 // queries that State has room for
#define BLOCKS (QUERIES / 8)
#define SORT 1024 // threads of retrieve_best
#define EACH (LIST / SORT)
#define BINS 2048

struct Ask { // of a query
  u64 after;          // keys from here on are left out
  const u32* without; // items that are left out, ascending
  const u32* allowed; // a bit for each item; null: all
  int withouts;
  int k;
};

struct State { // of a search, zero before it
  u64 bound[ALL];
  u32 kept[ALL];
  u32 broken[ALL]; // scores that are no finite numbers
  u32 listed[ALL]; // keys of the last part
  u32 failed;
  u32 unsure; // some answer may lack a key
  u32 pad[14];
};

struct Counts { // of a part, zero before it
  u32 added[ALL]; // to the places of all blocks
  u32 broken[ALL];
};

struct Scan {
  const bf16* items;   // [rows][chunks · CHUNK]
  const bf16* queries; // [QUERIES][chunks · CHUNK]
  const Ask* asks;
  State* state;
  u64* lists; // [count][LIST]
  u32* owns;  // [count][blocks]: keys in a block's own place
  int rows, chunks, count;
  int groups, step; // of tiles; neighbours in the order of a scan are step groups apart
};

// ---- what clang has no names for

DEVICE u32 add_global(u32* p, u32 v) {
  u32 o;
  asm volatile("atom.global.add.u32 %0, [%1], %2;" : "=r"(o) : "l"(p), "r"(v) : "memory");
  return o;
}
DEVICE u32 add_shared(u32* p, u32 v) {
  u32 o;
  asm volatile("atom.shared.add.u32 %0, [%1], %2;" : "=r"(o) : "r"(shared_address(p)), "r"(v) : "memory");
  return o;
}
DEVICE u32 ballot(bool b) {
  u32 v;
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %1, 0; vote.sync.ballot.b32 %0, p, 0xffffffff; }"
               : "=r"(v) : "r"((u32)b) : "memory");
  return v;
}
DEVICE int ones(u32 v) { int n; asm("popc.b32 %0, %1;" : "=r"(n) : "r"(v)); return n; }
DEVICE int lowest(u64 v) { int n; asm("{ .reg .b64 t; brev.b64 t, %1; clz.b64 %0, t; }" : "=r"(n) : "l"(v)); return n; }
DEVICE int highest(u64 v) { int n; asm("clz.b64 %0, %1;" : "=r"(n) : "l"(v)); return 63 - n; }
DEVICE u32 shift_up(u32 v, int by) {
  u32 y;
  asm volatile("shfl.sync.up.b32 %0, %1, %2, 0, 0xffffffff;" : "=r"(y) : "r"(v), "r"(by));
  return y;
}
DEVICE u32 swap_u(u32 v, int mask) {
  u32 y;
  asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, 0xffffffff;" : "=r"(y) : "r"(v), "r"(mask));
  return y;
}
// A line of 256 bytes goes to the L2 with the 16 bytes that are wanted first: the next stages are in it.
DEVICE void copy16(u32 to, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
DEVICE void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> DEVICE void copies_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }
// Four 8×8 fragments whose rows the lanes 0–7, 8–15, 16–23 and 24–31 point at.
DEVICE void load_fragments(u32* r, u32 at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}
// d += 16 rows × 8 columns, over 16.
DEVICE void product(float* d, const u32* a, u32 b0, u32 b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
               "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
DEVICE void store_shared(u32 to, U4 v) {
  asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}

// ---- keys

#define LARGEST 0x7f7fffffu  // the largest finite float
#define MINUS_INF 0xff800000u

DEVICE u64 key_of(float score, u32 item) {
  u32 b = score == 0 ? 0 : f_bits(score); // both zeros are one score
  b = b >> 31 ? ~b : b | 0x80000000u;
  return (u64)b << 32 | (u32)~item;
}
// A score that no key above the bound is below.
DEVICE float lowest_score(u64 bound) {
  u32 b = (u32)(bound >> 32);
  if (bound == 0) return bits_f(MINUS_INF);
  return bits_f(b >> 31 ? b & 0x7fffffffu : ~b);
}

// ---- the scan

// Walk is the tiles of a warp, in their order.
struct Walk {
  int at, end, by; // in the order of the scan
  int tile;

  DEVICE void find(const Scan& s) { // the first tile with items from at on; there is none if at reaches end
    int tiles = (s.rows + TILE - 1) / TILE;
    for (; at < end; at += by) {
      tile = (int)((u64)(u32)(at / GROUP) * (u32)s.step % (u32)s.groups) * GROUP + at % GROUP;
      if (tile < tiles) return;
    }
  }
  DEVICE void next(const Scan& s) {
    at += by;
    find(s);
  }
};

// Loader copies the pieces of a warp's tiles to its ring.
struct Loader {
  Walk walk;
  int chunk, stage;

  DEVICE void issue(const Scan& s, u32 ring) {
    if (walk.at < walk.end) {
      int lane = threadIdx.x & 31, stride = s.chunks * CHUNK;
      u32 to = ring + stage * STAGE_BYTES + (lane >> 3) * ROW_BYTES + (lane & 7) * 16;
      const bf16* from = s.items + chunk * CHUNK + (lane & 7) * 8;
      int row = walk.tile * TILE + (lane >> 3);
#pragma unroll
      for (int i = 0; i < TILE / 4; i++)
        copy16(to + i * 4 * ROW_BYTES, from + (u64)min_i(row + 4 * i, s.rows - 1) * stride);
      if (++stage == STAGES) stage = 0;
      if (++chunk == s.chunks) chunk = 0, walk.next(s);
    }
    copies_commit(); // also of nothing: the groups are counted
  }
};

// multiply adds the products of a stage.
DEVICE void multiply(float (&sums)[2 * BLOCKS * 4], u32 stage, u32 queries, int query_bytes) {
  int lane = threadIdx.x & 31;
  u32 a_at = stage + (lane & 15) * ROW_BYTES + (lane >> 4) * 16;
  u32 b_at = queries + ((lane & 7) + (lane >> 4) * 8) * query_bytes + (lane >> 3 & 1) * 16;
#pragma unroll
  for (int k = 0; k < CHUNK / 16; k++) {
    u32 a[2][4];
    load_fragments(a[0], a_at + k * 32);
    load_fragments(a[1], a_at + 16 * ROW_BYTES + k * 32);
#pragma unroll
    for (int n = 0; n < BLOCKS; n += 2) {
      u32 b[4];
      load_fragments(b, b_at + n * 8 * query_bytes + k * 32);
#pragma unroll
      for (int m = 0; m < 2; m++) {
        product(sums + (n * 2 + m) * 4, a[m], b[0], b[1]);
        product(sums + (n * 2 + 2 + m) * 4, a[m], b[2], b[3]);
      }
    }
  }
}

// Whether a query may be answered with an item.
DEVICE bool eligible(const Ask& a, u32 item) {
  if (a.allowed && !(a.allowed[item >> 5] >> (item & 31) & 1)) return false;
  int low = 0, high = a.withouts;
  while (low < high) {
    int middle = (low + high) >> 1;
    if (a.without[middle] < item) low = middle + 1;
    else high = middle;
  }
  return low == a.withouts || a.without[low] != item;
}

// Queue holds a warp's keys on their way to the lists.
struct Queue {
  u64* keys;
  int* queries;
  int n;

  DEVICE void flush(const Scan& s, Counts* counts, u32* added) {
    int lane = threadIdx.x & 31;
    if (lane < n) {
      int q = queries[lane];
      u64* list = s.lists + (u64)q * LIST;
      u32 room = OWN / gridDim.x, at = add_shared(&added[q], 1);
      if (at < room) {
        list[MOST + blockIdx.x * room + at] = keys[lane];
      } else {
        at = add_global(&counts->added[q], 1);
        if (at < ROOM) list[SHARED + at] = keys[lane];
      }
    }
    __syncwarp();
    u64 key = 0;
    int query = 0;
    if (lane + 32 < n) key = keys[lane + 32], query = queries[lane + 32];
    __syncwarp();
    keys[lane] = key, queries[lane] = query;
    __syncwarp();
    n = max_i(n - 32, 0);
  }
  DEVICE void push(bool yes, u64 key, int query) {
    u32 who = ballot(yes);
    int at = n + ones(who & (1u << (threadIdx.x & 31)) - 1);
    if (yes) keys[at] = key, queries[at] = query;
    n += ones(who);
    __syncwarp();
  }
};

// pass returns a bit for each of a thread's sums that is not clearly below its query's bound, or no finite number.
DEVICE u64 passing(const float (&sums)[2 * BLOCKS * 4], const float* lows) {
  const float least = bits_f(LARGEST | 0x80000000u);
  int column = 2 * (threadIdx.x & 3);
  u64 bits = 0;
#pragma unroll
  for (int n = 0; n < BLOCKS; n++) {
    float low[2] = {lows[n * 8 + column], lows[n * 8 + column + 1]};
#pragma unroll
    for (int i = 0; i < 8; i++)
      if (!(sums[n * 8 + i] >= least && sums[n * 8 + i] < low[i & 1])) bits |= (u64)1 << (n * 8 + i);
  }
  return bits;
}

// One of two values, which are not put into memory to be found there.
DEVICE float either(u32 yes, float a, float b) {
  float y;
  asm("{ .reg .pred p; setp.ne.u32 p, %3, 0; selp.f32 %0, %1, %2, p; }" : "=f"(y) : "f"(a), "f"(b), "r"(yes));
  return y;
}

// The value with a number, by halves: a few steps that wait for each other, not one for each value.
template <int N>
struct Pick {
  DEVICE static float of(const float (&v)[N], int number) {
    float half[N / 2];
#pragma unroll
    for (int i = 0; i < N / 2; i++) half[i] = either(number & 1, v[2 * i + 1], v[2 * i]);
    return Pick<N / 2>::of(half, number >> 1);
  }
};
template <>
struct Pick<1> {
  DEVICE static float of(const float (&v)[1], int) { return v[0]; }
};

// first and end are places in the order of tiles; dense lists have a place for each of their items.
KERNEL void __launch_bounds__(32 * WARPS, 1)
    retrieve_scan(const bf16* items, const bf16* asked, const Ask* asks, State* state, u64* lists, u32* owns,
                  Counts* counts, int rows, int chunks, int count, int groups, int step, int first, int end, int dense) {
  const Scan s = {items, asked, asks, state, lists, owns, rows, chunks, count, groups, step};
  extern __shared__ __align__(128) u8 memory[];
  __shared__ u64 queued[WARPS][QUEUE], bounds[QUERIES];
  __shared__ int queuedFor[WARPS][QUEUE];
  __shared__ float lows[QUERIES];
  __shared__ u32 added[QUERIES];
  __shared__ Ask allAsks[QUERIES];
  if (s.state->failed) return;
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, query_bytes = s.chunks * CHUNK * 2 + 16;
  u32 queries = shared_address(memory), ring = queries + QUERIES * query_bytes + warp * STAGES * STAGE_BYTES;
  Walk walk = {first + (int)blockIdx.x * WARPS + warp, end, (int)gridDim.x * WARPS, 0};
  walk.find(s);
  Loader loader = {walk, 0, 0};
#pragma unroll
  for (int i = 0; i < STAGES - 1; i++) loader.issue(s, ring);
  for (int i = threadIdx.x; i < QUERIES * s.chunks * (CHUNK / 8); i += 32 * WARPS) {
    int row = i / (s.chunks * (CHUNK / 8)), piece = i % (s.chunks * (CHUNK / 8));
    store_shared(queries + row * query_bytes + piece * 16, load_once(s.queries + (u64)i * 8));
  }
  for (int i = threadIdx.x; i < QUERIES; i += 32 * WARPS) {
    bounds[i] = i < s.count ? s.state->bound[i] : 0;
    lows[i] = i < s.count ? lowest_score(bounds[i]) : bits_f(LARGEST);
    added[i] = 0;
    if (i < s.count) allAsks[i] = s.asks[i];
  }
  __syncthreads(); // warps go on by themselves
  Queue queue = {queued[warp], queuedFor[warp], 0};
  for (int stage = 0; walk.at < walk.end; walk.next(s)) {
    float sums[2 * BLOCKS * 4];
#pragma unroll
    for (int i = 0; i < 2 * BLOCKS * 4; i++) sums[i] = 0;
    for (int c = 0; c < s.chunks; c++) {
      copies_wait<STAGES - 2>();
      __syncwarp(); // all lanes' copies are there, and none reads the stage that is filled next
      loader.issue(s, ring);
      multiply(sums, ring + stage * STAGE_BYTES, queries + c * CHUNK * 2, query_bytes);
      if (++stage == STAGES) stage = 0;
    }
    u64 left = passing(sums, lows);
    while (ballot(left != 0)) {
      bool keep = left != 0;
      int q = 0, place = 0;
      u64 key = 0;
      if (keep) {
        int bit = lowest(left);
        left &= left - 1;
        q = (bit >> 3) * 8 + 2 * (lane & 3) + (bit & 1);
        place = (bit >> 2 & 1) * 16 + (bit >> 1 & 1) * 8 + (lane >> 2);
        u32 item = (u32)(walk.tile * TILE + place);
        float score = Pick<2 * BLOCKS * 4>::of(sums, bit);
        bool finite = (f_bits(score) & 0x7fffffffu) <= LARGEST;
        key = key_of(score, item);
        keep = item < (u32)s.rows && q < s.count && (!finite || key > bounds[q]);
        if (keep) {
          const Ask& a = allAsks[q];
          keep = (!finite || key < a.after) && eligible(a, item);
        }
        if (keep && !finite) {
          add_global(&counts->broken[q], 1);
          keep = false;
        }
      }
      if (dense) {
        if (keep) s.lists[(u64)q * LIST + (walk.at - first) * TILE + place] = key;
        continue;
      }
      queue.push(keep, key, q);
      if (queue.n >= 32) queue.flush(s, counts, added);
    }
  }
  while (queue.n > 0) queue.flush(s, counts, added);
  __syncthreads();
  for (int q = threadIdx.x; q < s.count; q += 32 * WARPS)
    s.owns[q * gridDim.x + blockIdx.x] = min_i((int)added[q], (int)(OWN / gridDim.x));
}

// ---- the best of a list

DEVICE u64 swap_long(u64 v, int mask) { return (u64)swap_u((u32)(v >> 32), mask) << 32 | swap_u((u32)v, mask); }

// The largest of a block's values; scratch has 33.
DEVICE u64 block_max(u64 v, u64* scratch) {
#pragma unroll
  for (int m = 16; m > 0; m >>= 1) {
    u64 o = swap_long(v, m);
    if (o > v) v = o;
  }
  __syncthreads();
  if ((threadIdx.x & 31) == 0) scratch[threadIdx.x >> 5] = v;
  __syncthreads();
  u64 most = 0;
  for (int i = 0; i < SORT / 32; i++) // all threads read the same
    if (scratch[i] > most) most = scratch[i];
  return most;
}

// The sum of the values of the threads before, and of all in total; scratch has 32.
DEVICE u32 block_before(u32 v, u32* scratch, u32& total) {
  u32 through = v;
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#pragma unroll
  for (int by = 1; by < 32; by <<= 1) {
    u32 o = shift_up(through, by);
    if (lane >= by) through += o;
  }
  __syncthreads();
  if (lane == 31) scratch[warp] = through;
  __syncthreads();
  u32 before = 0;
  total = 0;
  for (int w = 0; w < SORT / 32; w++) {
    if (w < warp) before += scratch[w];
    total += scratch[w];
  }
  return before + through - v;
}

struct Found { // a bin
  u32 bin, need, count;
};

// The least of the k largest keys, of more than k that differ, or a number between it and the next one below.
DEVICE u64 threshold(const u64 (&keys)[EACH], u32 k, u64 most, u64 least, u32* bins, u32* sums, Found* found) {
  int t = threadIdx.x, top = highest(most ^ least), shift;
  u64 known = top == 63 ? 0 : ~(u64)0 << (top + 1), prefix = most & known;
  for (u32 need = k;; top = shift - 1) {
    shift = max_i(top - 10, 0);
    u32 mask = (2u << (top - shift)) - 1, total;
    for (int i = t; i < BINS; i += SORT) bins[i] = 0;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < EACH; i++)
      if (keys[i] != 0 && (keys[i] & known) == prefix) add_shared(&bins[(u32)(keys[i] >> shift) & mask], 1);
    __syncthreads();
    u32 high = bins[BINS - 1 - 2 * t], low = bins[BINS - 2 - 2 * t];
    u32 before = block_before(high + low, sums, total);
    u32 bin = (u32)(BINS - 1 - 2 * t), both = before + high;
    if (before < need && need <= both) *found = {bin, need - before, high};
    else if (both < need && need <= both + low) *found = {bin - 1, need - both, low};
    __syncthreads();
    Found f = *found;
    prefix |= (u64)f.bin << shift;
    known |= (u64)mask << shift;
    if (f.count == f.need || shift == 0) return prefix;
    need = f.need;
  }
}

// Sorts 2^n keys, the largest first.
DEVICE void sort(u64* keys, int size) {
  int t = threadIdx.x;
  for (int run = 2; run <= size; run <<= 1)
    for (int by = run >> 1; by > 0; by >>= 1) {
      int other = t ^ by;
      if (t < size && other > t) {
        u64 a = keys[t], b = keys[other];
        if ((t & run) == 0 ? a < b : a > b) keys[t] = b, keys[other] = a;
      }
      __syncthreads();
    }
}

// Places tells which places of a query's list have keys.
struct Places {
  const u32* own;      // keys of each block
  u32 kept, added, blocks, room, dense;

  DEVICE bool have(u32 at) const {
    if (dense > 0) return at < dense;
    if (at < MOST) return at < kept;
    if (at >= SHARED) return at - SHARED < added;
    u32 block = (at - MOST) / room;
    return block < blocks && at - MOST - block * room < own[block];
  }
};

// What an answer has of a key: the item, and above it the score.
DEVICE u64 hit_of(u64 key) {
  u32 b = (u32)(key >> 32);
  return (u64)(b >> 31 ? b & 0x7fffffffu : ~b) << 32 | (u32)~(u32)key;
}

// part is the number of the part, from 1, and blocks are those of its scan; size is that of dense lists, 0 where they
// are not. The next bound is the key at place k / share, or LEAST_PLACE: few keys say little. The last one writes the hits of each query to best, the best
// first.
KERNEL void __launch_bounds__(SORT)
    retrieve_best(const Ask* asks, State* state, const Counts* counts, u64* lists, const u32* owns, u64* best, int part,
                  int size, int blocks, int share) {
  __shared__ u64 sorted[MOST], extremes[33];
  __shared__ u32 bins[BINS], sums[32];
  __shared__ Found found;
  int q = blockIdx.x, t = threadIdx.x;
  bool full = false; // for any query: all blocks see the same
  for (int i = 0; i < (int)gridDim.x; i++) full |= counts->added[i] > ROOM;
  if (full || state->failed) {
    if (full && q == 0 && t == 0 && !state->failed) state->failed = part;
    return;
  }
  u64* list = lists + (u64)q * LIST;
  const Places places = {owns + q * blocks, state->kept[q], counts->added[q], (u32)blocks, (u32)(OWN / blocks),
                         (u32)size};
  u64 keys[EACH], most = 0, most_not = 0;
  u32 own = 0, valid, k = (u32)asks[q].k;
#pragma unroll
  for (int i = 0; i < EACH; i++) {
    keys[i] = places.have(i * SORT + t) ? list[i * SORT + t] : 0;
    if (keys[i] == 0) continue;
    own++;
    if (keys[i] > most) most = keys[i];
    if (~keys[i] > most_not) most_not = ~keys[i];
  }
  block_before(own, sums, valid);
  u64 from = 1, bound = 0;
  u32 place = share > 1 ? min_i(k, max_i(LEAST_PLACE, k / share)) : k;
  if (valid > place) {
    most = block_max(most, extremes);
    u64 least = ~block_max(most_not, extremes);
    if (valid > k) from = threshold(keys, k, most, least, bins, sums, &found);
    if (place < k && !best) bound = threshold(keys, place, most, least, bins, sums, &found);
  }
  own = 0;
  u64 worst_not = 0;
#pragma unroll
  for (int i = 0; i < EACH; i++) {
    if (keys[i] < from) continue;
    own++;
    if (~keys[i] > worst_not) worst_not = ~keys[i];
  }
  u32 kept, at = block_before(own, sums, kept);
  worst_not = block_max(worst_not, extremes);
  sorted[t] = 0;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < EACH; i++)
    if (keys[i] >= from) list[at] = sorted[at] = keys[i], at++;
  if (t == 0) {
    u64 worst = kept == k ? ~worst_not : 0, before = state->bound[q];
    if (best && worst < before) state->unsure = 1;
    if (place == k) bound = worst;
    state->bound[q] = bound > before ? bound : before; // the largest of all: what was not listed is below it
    state->kept[q] = kept;
    state->listed[q] = valid;
    state->broken[q] += counts->broken[q];
  }
  if (!best) return;
  int run = 1;
  while (run < (int)kept) run <<= 1;
  __syncthreads();
  sort(sorted, run);
  if (t < (int)kept) best[(u64)q * MOST + t] = hit_of(sorted[t]);
}
