// rows_place: carries out decisions of the host about rows: which staged rows get slots, and whose slots these were.
//
// A row that leaves is forgotten by rows_clear, ahead of rows_place, so that a row which leaves one slot for another
// keeps its new entry. rows_pages gives pages memory and epochs, and rows_sweep forgets the entries of a page whose
// epochs begin again.
#include "rows.cuh"

struct __align__(16) Change {
  u32 id, entry;
  int staged;  // where the row is in the stage
  u32 evicted; // the row that was in the slot; CLAIMED: none
};

KERNEL void rows_clear(const Table* tables, int table, const Change* changes, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  const Table t = tables[table];
  if (i < count && changes[i].evicted < t.rows) t.entries[changes[i].evicted] = 0;
}

// A warp per change.
KERNEL void rows_place(const Table* tables, int table, const Change* changes, int count, const u8* stage) {
  const Table t = tables[table];
  int lane = threadIdx.x & 31;
  for (int i = (blockIdx.x * blockDim.x + threadIdx.x) >> 5; i < count; i += gridDim.x * blockDim.x >> 5) {
    const Change c = changes[i];
    u32 slot = c.entry & ((1u << t.slot_bits) - 1);
    U4* to = (U4*)t.pages[slot >> t.page_bits].base + (u64)(slot & ((1u << t.page_bits) - 1)) * t.words;
    const U4* from = (const U4*)stage + (u64)c.staged * t.words;
    for (int w = lane; w < t.words; w += 32) to[w] = from[w];
    if (lane == 0 && c.id < t.rows) t.entries[c.id] = c.entry;
  }
}

// Pages first to first + count − 1 lie one behind the other from base on.
KERNEL void rows_pages(const Table* tables, int table, int first, int count, u8* base, u32 epoch) {
  const Table t = tables[table];
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    Page p = {base + ((u64)i << t.page_bits) * t.words * 16, epoch, 0};
    t.pages[first + i] = p;
  }
}

KERNEL void rows_sweep(const Table* tables, int table, int first, int count) {
  const Table t = tables[table];
  for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < t.rows; i += gridDim.x * blockDim.x) {
    int page = (int)((t.entries[i] & ((1u << t.slot_bits) - 1)) >> t.page_bits);
    if (page >= first && page < first + count) t.entries[i] = 0;
  }
}
