// rows_missing: what happens to rows that are not cached.
//
// rows_find lists the missing rows of some jobs, each once, and gives each the next slot of the table's stage.
// rows_fetch copies listed rows from pinned memory of the host to the stage: PCIe limits it. After the batch the
// stage's epoch changes, which forgets them all.
#include "rows.cuh"

#define DEPTH 4 // loads in flight per thread

// Stage is where fetched rows of a table lie.
struct __align__(16) Stage {
  u32* ids; // the missing rows
  u32* count; // of them; more than room: the others were left out
  u8* base;
  u32 first; // the entry of its first slot
  u32 room;  // rows
};

DEVICE u32 swap_if(u32* at, u32 old, u32 now) {
  u32 was;
  asm volatile("atom.global.relaxed.gpu.cas.b32 %0, [%1], %2, %3;"
               : "=r"(was) : "l"(at), "r"(old), "r"(now) : "memory");
  return was;
}
DEVICE u32 add_to(u32* at, u32 n) {
  u32 was;
  asm volatile("atom.global.relaxed.gpu.add.u32 %0, [%1], %2;" : "=r"(was) : "l"(at), "r"(n) : "memory");
  return was;
}
DEVICE u32 load_now(const u32* at) {
  u32 v;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(at) : "memory");
  return v;
}
DEVICE u32 ballot(bool yes) {
  u32 v;
  asm volatile("{.reg .pred p; setp.ne.u32 p, %1, 0; vote.sync.ballot.b32 %0, p, 0xffffffff;}"
               : "=r"(v) : "r"((u32)yes));
  return v;
}
DEVICE int bits_in(u32 v) { int n; asm("popc.b32 %0, %1;" : "=r"(n) : "r"(v)); return n; }

// Reports whether the caller is the one that fetches a row.
DEVICE bool claim(const Table& t, u32 id) {
  if (id >= t.rows) return false;
  u32 e = load_now(t.entries + id), epoch = e >> t.slot_bits;
  if (e == CLAIMED) return false;
  if (epoch != 0 && t.pages[(e & ((1u << t.slot_bits) - 1)) >> t.page_bits].epoch == epoch) return false;
  return swap_if(t.entries + id, e, CLAIMED) == e;
}

// Ids of a job are those from first to count; bags' lists are one list here.
KERNEL void __launch_bounds__(256) rows_find(const Table* tables, const Job* jobs, const Stage* stages) {
  const Job j = jobs[blockIdx.y];
  const Table t = tables[j.table];
  const Stage s = stages[j.table];
  int lane = threadIdx.x & 31, n = j.starts ? j.starts[j.count] : j.count;
  for (int first = (blockIdx.x * 256 + threadIdx.x) & ~31; first < n; first += gridDim.x * 256) {
    u32 id = first + lane < n ? j.ids[first + lane] : CLAIMED;
    bool mine = claim(t, id);
    u32 all = ballot(mine);
    if (!all) continue;
    u32 at = lane == 0 ? add_to(s.count, bits_in(all)) : 0;
    at = (u32)shuffle_u64(at, 0) + bits_in(all & ((1u << lane) - 1));
    if (!mine) continue;
    if (at < s.room) s.ids[at] = id;
    t.entries[id] = at < s.room ? s.first + at : 0;
  }
}

// Row i of the list is at from + stride · (whole ? its id : i). A count that is not negative replaces the stage's, and
// entries are set then: the host has made the list.
KERNEL void __launch_bounds__(256) rows_fetch(const Table* tables, const Stage* stages, int table, const u8* from,
                                              int stride, int whole, int count) {
  const Table t = tables[table];
  const Stage s = stages[table];
  const Place words = by_words(t.words);
  int lane = threadIdx.x & 31, n = min_i(count < 0 ? (int)*s.count : count, (int)s.room);
  for (int first = (blockIdx.x * 256 + threadIdx.x) & ~31; first < n; first += gridDim.x * 256) {
    u32 id = first + lane < n ? s.ids[first + lane] : 0;
    int all = min_i(32, n - first) * t.words;
    if (count >= 0 && first + lane < n && id < t.rows) t.entries[id] = s.first + first + lane;
    for (int at = 0; at < all; at += 32 * DEPTH) {
      U4 v[DEPTH];
#pragma unroll
      for (int d = 0; d < DEPTH; d++) {
        int i = min_i(at + 32 * d + lane, all - 1);
        u32 r = row_at(words, i);
        u64 row = whole ? shuffle_u64(id, r) : (u64)(first + r);
        v[d] = load_once(from + row * stride + (i - r * t.words) * 16);
      }
#pragma unroll
      for (int d = 0; d < DEPTH; d++) {
        int i = at + 32 * d + lane;
        if (i < all) ((U4*)s.base)[(u64)first * t.words + i] = v[d];
      }
    }
  }
}
