// moves: copies many pieces in one launch, from and to the GPU's memory or pinned memory of the host.
// A block takes one piece, or a share of its rows when there are few pieces. Pieces whose addresses,
// widths and strides are multiples of 16 go by words of 16 bytes, the others by bytes.
#include "grebe.cuh"

struct Move {
  u8* dst;
  const u8* src;
  u64 width, rows, dst_stride, src_stride; // in bytes
};

KERNEL void moves(const Move* list, int count) {
  Move m = list[blockIdx.x];
  bool wide = (((u64)m.dst | (u64)m.src | m.width | m.dst_stride | m.src_stride) & 15) == 0;
  u64 unit = wide ? 16 : 1, per = m.width / unit, all = per * m.rows;
  for (u64 i = (u64)blockIdx.y * blockDim.x + threadIdx.x; i < all; i += (u64)gridDim.y * blockDim.x) {
    u64 row = i / per, at = (i % per) * unit;
    if (wide) *(U4*)(m.dst + row * m.dst_stride + at) = *(const U4*)(m.src + row * m.src_stride + at);
    else m.dst[row * m.dst_stride + at] = m.src[row * m.src_stride + at];
  }
}
