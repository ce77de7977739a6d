// Rows of embedding tables that are cached in the GPU's memory. A table has one word per row, its entry: the number of
// a slot, and above it the epoch of the slot's page. An entry is valid while its epoch is the page's. So a page is
// freed by changing its epoch, and no entry is touched. Epoch 0 is never valid.
#pragma once
#include "grebe.cuh"

struct __align__(16) Page {
  u8* base; // of the first slot's row
  u32 epoch;
  u32 unused;
};

struct __align__(16) Table {
  u32* entries;
  Page* pages; // as many as the slot's bits can name
  u32 rows;
  int words;      // 16-byte words of a row
  int slot_bits;  // of an entry
  int page_bits;  // of a slot's number: its place in the page
};

// Job is a list of rows of one table, for one grid row of a launch.
struct __align__(16) Job {
  const u32* ids;
  u8* out;
  const int* starts;    // of bags, count + 1; pooling only
  const float* weights; // one per id, or none
  int table, count;     // ids, or bags
  int stride;           // bytes from one output to the next
  int mean;
};

#define CLAIMED 0xffffffffu // no valid entry: who finds a row missing takes it

// Returns where a row is cached, or 0. It has no branches, so that loads of several calls are in flight at once.
DEVICE u64 row_of(const Table& t, u32 id) {
  bool known = id < t.rows;
  u32 e = t.entries[known ? id : 0], epoch = e >> t.slot_bits, slot = e & ((1u << t.slot_bits) - 1);
  Page p = t.pages[slot >> t.page_bits];
  bool valid = known & (epoch != 0) & (p.epoch == epoch) & (e != CLAIMED);
  return valid ? (u64)p.base + (u64)(slot & ((1u << t.page_bits) - 1)) * t.words * 16 : 0;
}

// Place divides places among rows that lie one behind the other by their length: a division is slower than a load here.
// Places are below 2^20, and rows have up to 2^12 words.
struct Place {
  u32 words, inverse;
};
DEVICE Place by_words(int words) {
  Place p = {(u32)words, 0xffffffffu / words + 1};
  return p;
}
DEVICE u32 row_at(const Place& p, u32 i) {
  u32 row;
  asm("mul.hi.u32 %0, %1, %2;" : "=r"(row) : "r"(i), "r"(p.inverse));
  return p.words == 1 ? i : row;
}

DEVICE u64 shuffle_u64(u64 v, int lane) {
  u32 low, high;
  asm volatile("shfl.sync.idx.b32 %0, %1, %2, 31, 0xffffffff;" : "=r"(low) : "r"((u32)v), "r"(lane));
  asm volatile("shfl.sync.idx.b32 %0, %1, %2, 31, 0xffffffff;" : "=r"(high) : "r"((u32)(v >> 32)), "r"(lane));
  return (u64)high << 32 | low;
}
DEVICE int shuffle_int(int v, int lane) {
  int y;
  asm volatile("shfl.sync.idx.b32 %0, %1, %2, 31, 0xffffffff;" : "=r"(y) : "r"(v), "r"(lane));
  return y;
}
