// angles: cosine and sine of position · frequency for every row, times the rotation's scale. The
// product is rounded to float, as the definition has it; the rest is double, since positions times
// frequencies have many turns.
#include "grebe.cuh"

// Sine and cosine of r, |r| ≤ π/4, by their series.
DEVICE void sincos_small(double r, double* s, double* c) {
  double q = r * r;
  *s = r * (1 + q * (-1.0 / 6 + q * (1.0 / 120 + q * (-1.0 / 5040 + q * (1.0 / 362880 + q * (-1.0 / 39916800 + q * (1.0 / 6227020800.0)))))));
  *c = 1 + q * (-0.5 + q * (1.0 / 24 + q * (-1.0 / 720 + q * (1.0 / 40320 + q * (-1.0 / 3628800 + q * (1.0 / 479001600.0 + q * (-1.0 / 87178291200.0)))))));
}

KERNEL void angles(float* cosine, float* sine, const int* positions, const float* frequencies, const int* rows, int half, float scale) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  wait_for_previous();
  int row = i / half, j = i % half;
  if (row >= *rows) return;
  double a = (double)((float)positions[row] * frequencies[j]);
  double turns = a * 0.63661977236758134308; // 2/π
  long long k = (long long)(turns + (turns < 0 ? -0.5 : 0.5));
  double r = a - (double)k * 1.57079632679489655800; // π/2, rounded
  r -= (double)k * 6.12323399573676603587e-17;       // and its rest
  double s, c;
  sincos_small(r, &s, &c);
  int quarter = (int)(k & 3);
  double cc = quarter == 0 ? c : quarter == 1 ? -s : quarter == 2 ? -c : s;
  double ss = quarter == 0 ? s : quarter == 1 ? c : quarter == 2 ? -s : -c;
  cosine[i] = (float)cc * scale;
  sine[i] = (float)ss * scale;
}
