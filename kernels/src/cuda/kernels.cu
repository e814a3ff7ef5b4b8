// Norms of rows and AdamW's step, compiled at run time by NVRTC with `--fmad=false`, so that they round as they are written;
// tests/cuda_source.rs compiles the same text for the CPU. Number types are made of their bits: NVIDIA's headers for
// them need not be where this is compiled.

struct bf16 { unsigned short bits; };
struct f16 { unsigned short bits; };

// What a type is computed in.
template <typename T> struct Wide { typedef float type; };
template <> struct Wide<double> { typedef double type; };

__device__ inline double widen(double x) { return x; }
__device__ inline float widen(float x) { return x; }
__device__ inline float widen(bf16 x) { return __uint_as_float((unsigned)x.bits << 16); }
__device__ inline float widen(f16 x) { return __half_bits_to_float(x.bits); }

__device__ inline void narrow(double x, double *to) { *to = x; }
__device__ inline void narrow(float x, float *to) { *to = x; }
__device__ inline void narrow(float x, f16 *to) { to->bits = __float_to_half_bits(x); }
__device__ inline void narrow(float x, bf16 *to) {
  unsigned bits = __float_as_uint(x);
  if (x != x) {
    to->bits = 0x7fff; // NaN, which rounding could make a number
    return;
  }
  to->bits = (unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16); // to nearest, ties to even
}

__device__ inline double root(double x) { return sqrt(x); }
__device__ inline float root(float x) { return sqrtf(x); }

// The threads of a block; part of a row's bits.
const int THREADS = 256;

// The sum of what the threads of a block have, in every thread.
template <typename W> __device__ W total(W x, W *shared) {
  shared[threadIdx.x] = x;
  __syncthreads();
  for (int n = THREADS / 2; n > 0; n /= 2) {
    if ((int)threadIdx.x < n) shared[threadIdx.x] += shared[threadIdx.x + n];
    __syncthreads();
  }
  W sum = shared[0];
  __syncthreads();
  return sum;
}

enum Statistic { VARIANCE, MEAN_SQUARE };
enum Gain { WEIGHT, WEIGHT_AFTER_ROUNDING, ONE_PLUS_WEIGHT };

// y = norm(x), or norm(x + residual), whose rounded sum goes to `sum`; a block for each row.
template <typename T>
__device__ void norm_row(const T *x, const T *residual, const T *weight, const T *bias, T *sum, T *y, long long width,
                         double eps, int statistic, int gain) {
  typedef typename Wide<T>::type W;
  __shared__ W shared[THREADS];
  const long long start = (long long)blockIdx.x * width;
  const long long first = threadIdx.x;
  if (residual) {
    // Each thread reads again what it wrote itself.
    for (long long i = start + first; i < start + width; i += THREADS) narrow(widen(x[i]) + widen(residual[i]), &sum[i]);
    x = sum;
  }
  // The first mean is rounded; what it leaves is taken off each difference, not put into the mean.
  W mean = 0, left = 0;
  if (statistic == VARIANCE) {
    W part = 0;
    for (long long i = first; i < width; i += THREADS) part += widen(x[start + i]);
    mean = total(part, shared) / (W)width;
    part = 0;
    for (long long i = first; i < width; i += THREADS) part += widen(x[start + i]) - mean;
    left = total(part, shared) / (W)width;
  }
  W part = 0;
  for (long long i = first; i < width; i += THREADS) {
    W centered = (widen(x[start + i]) - mean) - left;
    part += centered * centered;
  }
  const W deviation = root(total(part, shared) / (W)width + (W)eps);
  for (long long i = first; i < width; i += THREADS) {
    W normal = ((widen(x[start + i]) - mean) - left) / deviation;
    if (gain == WEIGHT_AFTER_ROUNDING) {
      T rounded;
      narrow(normal, &rounded);
      normal = widen(rounded);
    }
    W factor = widen(weight[i]);
    if (gain == ONE_PLUS_WEIGHT) factor = (W)1 + factor;
    W value = normal * factor;
    if (bias) value += widen(bias[i]);
    narrow(value, &y[start + i]);
  }
}

// One step of AdamW, in the order of operations of the CPU's (rows/adamw.rs), whose bits it has.
template <typename T>
__device__ void adamw_step(T *parameter, const T *gradient, typename Wide<T>::type *moments, long long n,
                           double scale, double keep, double beta2, double first_weight, int from_gradient,
                           double second_weight, double second_root, double eps, double step_size) {
  typedef typename Wide<T>::type W;
  W *first = moments, *second = moments + n;
  const long long stride = (long long)gridDim.x * blockDim.x;
  for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
    const W g = widen(gradient[i]) * (W)scale;
    const W from = from_gradient ? g : first[i];
    const W m = from + (W)first_weight * (g - first[i]);
    const W v = second[i] * (W)beta2 + (W)second_weight * g * g;
    first[i] = m;
    second[i] = v;
    const W divisor = root(v) / (W)second_root + (W)eps;
    narrow(widen(parameter[i]) * (W)keep - (W)step_size * m / divisor, &parameter[i]);
  }
}

#define INSTANTIATE(T, name)                                                                                           \
  extern "C" __global__ void norm_##name(const T *x, const T *residual, const T *weight, const T *bias, T *sum, T *y, \
                                         long long width, double eps, int statistic, int gain) {                       \
    norm_row<T>(x, residual, weight, bias, sum, y, width, eps, statistic, gain);                                       \
  }                                                                                                                    \
  extern "C" __global__ void adamw_##name(T *parameter, const T *gradient, Wide<T>::type *moments, long long n,        \
                                          double scale, double keep, double beta2, double first_weight,                \
                                          int from_gradient, double second_weight, double second_root, double eps,     \
                                          double step_size) {                                                          \
    adamw_step<T>(parameter, gradient, moments, n, scale, keep, beta2, first_weight, from_gradient, second_weight,     \
                  second_root, eps, step_size);                                                                        \
  }

INSTANTIATE(float, f32)
INSTANTIATE(double, f64)
INSTANTIATE(f16, f16)
INSTANTIATE(bf16, bf16)
