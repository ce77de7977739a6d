// silu_fp8: silu.cu for a feed-forward layer with a product of FP8 before it, after it, or both. A block takes one row
// after the other, each of which it keeps in registers; runs against memory bandwidth.
//
// With SCALED the product before it is of FP8, and its rows and columns have scales. With STAGED a block keeps those of
// columns in shared memory (8·COLS bytes): they are twice as many bytes as a row, and several rows use them. With OUT 3 the
// result is rounded to e4m3, each row with a scale of its own, which goes to scales. IN is the format of the product. Rows
// of the result have COLS columns, a multiple of 16, those of the product twice as many. The block has THREADS threads.
// check: IN=1 OUT=3 SCALED=1 STAGED=1 COLS=8960 THREADS=384
// check: IN=0 OUT=3 SCALED=1 STAGED=0 COLS=48 THREADS=32
// check: IN=1 OUT=1 SCALED=1 STAGED=1 COLS=8960 THREADS=384
// check: IN=1 OUT=3 SCALED=0 STAGED=0 COLS=28672 THREADS=512
#include "grebe.cuh"
#include "load.cuh"

#define UNITS (COLS / 8) // of 8 columns
#define TURNS ((UNITS + THREADS - 1) / THREADS)
#define PIECES SIZE_OF(IN) // of 16 bytes, of a unit of the product

#if STAGED
extern __shared__ F4 staged[]; // piece k of unit u at k·UNITS + u, so that neighbours read neighbours
#endif

// The scales of a unit's 16 columns.
DEVICE void load_scales(float* s, const float* col_scale, int unit) {
#if STAGED
#pragma unroll
  for (int k = 0; k < 4; k++) {
    F4 v = staged[k * UNITS + unit];
    s[4 * k] = v.x, s[4 * k + 1] = v.y, s[4 * k + 2] = v.z, s[4 * k + 3] = v.w;
  }
#else
  load8<0>(col_scale + 16 * unit, s);
  load8<0>(col_scale + 16 * unit + 8, s + 8);
#endif
}

KERNEL void __launch_bounds__(THREADS) silu_fp8(u8* out, const u8* in, const float* bias, const int* rows, int width,
                                                float* scales, const float* row_scale, const float* col_scale) {
#if STAGED
  for (int i = threadIdx.x; i < 4 * UNITS; i += THREADS) staged[i % 4 * UNITS + i / 4] = ((const F4*)col_scale)[i];
#endif
#if OUT == FP8
  __shared__ float scratch[33];
#endif
  wait_for_previous();
  allow_next();
#if STAGED
  __syncthreads();
#endif
  int count = *rows;
  for (int row = blockIdx.x; row < count; row += gridDim.x) {
    float by = SCALED ? row_scale[row] : 1.0f, most = 0, to[TURNS][8];
    U4 raw[TURNS][PIECES]; // all of it is asked for before the first of it is used
#pragma unroll
    for (int t = 0; t < TURNS; t++) {
      int unit = t * THREADS + threadIdx.x;
      const U4* at = (const U4*)(in + ((u64)row * COLS + 8 * unit) * 2 * SIZE_OF(IN));
#pragma unroll
      for (int k = 0; k < PIECES; k++)
        if (unit < UNITS) raw[t][k] = at[k];
    }
#pragma unroll
    for (int t = 0; t < TURNS; t++) {
      int unit = t * THREADS + threadIdx.x, col = 8 * unit;
      if (unit >= UNITS) break;
      float v[16];
      load8<IN>(raw[t], v);
      load8<IN>(raw[t] + PIECES / 2, v + 8);
      if (SCALED) {
        float s[16];
        load_scales(s, col_scale, unit);
#pragma unroll
        for (int i = 0; i < 16; i++) v[i] = v[i] * s[i] * by;
      }
#pragma unroll
      for (int i = 0; i < 8; i++) {
        float gate = v[2 * i], up = v[2 * i + 1];
        if (bias && col + i < width) { gate += bias[col + i]; up += bias[width + col + i]; }
        to[t][i] = silu(gate) * up;
      }
      if (OUT == FP8) most = largest8(to[t], most);
      else store8<OUT>(out + ((u64)row * COLS + col) * SIZE_OF(OUT), to[t]);
    }
#if OUT == FP8
    Rounding r = rounding(block_max(most, scratch));
    if (threadIdx.x == 0) scales[row] = r.scale;
#pragma unroll
    for (int t = 0; t < TURNS; t++) {
      int unit = t * THREADS + threadIdx.x;
      if (unit < UNITS) store8_e4m3(out + (u64)row * COLS + 8 * unit, to[t], r.inverse);
    }
#endif
  }
}
