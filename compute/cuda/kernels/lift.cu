// lift: which nodes of a level of a tree have an eligible item below them. The children of node n of the level are the
// bits starts[n] … starts[n+1]-1 of the level below, which begins with the bits of the eligible items. The host copies
// only those; the bits of all levels come from one launch per level, from the leaves up.
//
// blockIdx.y is the request; sets of requests lie step words apart. A thread makes the bit of a node, a warp a word.
// Limit: reading starts once per request.
#include "grebe.cuh"

DEVICE u32 votes(bool b) {
  u32 v;
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %1, 0; vote.sync.ballot.b32 %0, p, 0xffffffff; }" : "=r"(v) : "r"((u32)b));
  return v;
}

// Bits from … 31 of a word.
DEVICE u32 bits_from(u32 from) { return ~(u32)0 << (from & 31); }

KERNEL void __launch_bounds__(256) lift(const u32* starts, int nodes, const u32* below, u32* out, int step) {
  wait_for_previous();
  allow_next();
  int node = blockIdx.x * 256 + threadIdx.x;
  below += (u64)blockIdx.y * step, out += (u64)blockIdx.y * step;
  bool any = false;
  if (node < nodes) {
    u32 from = starts[node], to = starts[node + 1];
    for (u32 w = from >> 5; w << 5 < to && !any; w++) {
      u32 bits = below[w];
      if (w == from >> 5) bits &= bits_from(from);
      if (w == to >> 5) bits &= ~bits_from(to);
      any = bits != 0;
    }
  }
  u32 word = votes(any);
  if ((threadIdx.x & 31) == 0 && node < nodes) out[node >> 5] = word;
}
