/* Grid noise in one pass: random bits, table lookup, refinement, addition, division.

   Bit for bit what GridGaussianNoise does in numpy, and what its tests compare it with. The global lock is
   released throughout, so that threads make noise side by side. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

/* Philox4x64 with ten rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011). */
static inline uint64_t multiply(uint64_t a, uint64_t b, uint64_t *high) {
    unsigned __int128 product = (unsigned __int128)a * b;
    *high = (uint64_t)(product >> 64);
    return (uint64_t)product;
}

static inline void philox(uint64_t counter, uint64_t lane, uint64_t block, const uint64_t key[2], uint64_t words[4]) {
    uint64_t c0 = counter, c1 = lane, c2 = block, c3 = 0, k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint64_t high0, high1;
        uint64_t low0 = multiply(UINT64_C(0xD2E7470EE14C6C93), c0, &high0);
        uint64_t low1 = multiply(UINT64_C(0xCA5A826395121157), c2, &high1);
        c0 = high1 ^ c1 ^ k0;
        c1 = low1;
        c2 = high0 ^ c3 ^ k1;
        c3 = low0;
        k0 += UINT64_C(0x9E3779B97F4A7C15);
        k1 += UINT64_C(0xBB67AE8584CAA73B);
    }
    words[0] = c0, words[1] = c1, words[2] = c2, words[3] = c3;
}

typedef struct {
    const float *steps;       /* [65536], NaN where thresholds run through the cell */
    const int32_t *start;     /* [32769], where the cell's thresholds begin in `low` */
    const int64_t *low;       /* [count], the thresholds' 63 bits below their cell */
    int32_t count;
} table;

static float refine(const table *t, uint32_t cell, int64_t extra) {
    int mirrored = cell >= 32768;
    uint32_t lower = mirrored ? 65535 - cell : cell;
    int32_t from = t->start[lower], to = t->start[lower + 1];
    while (from < to) { /* the first threshold above `extra` */
        int32_t middle = (from + to) / 2;
        if (t->low[middle] <= extra) from = middle + 1;
        else to = middle;
    }
    int32_t value = from - t->count; /* the first threshold of all lies between -count and -count + 1 */
    return (float)(mirrored ? -value : value);
}

enum { CHUNK = 1024 }; /* values at a time: what they need fits the fastest cache */

static void fill(float *out, Py_ssize_t rows, Py_ssize_t size, const float *centre, float levels, const table *t,
                 const uint64_t key[2], uint64_t block) {
    /* numpy's Philox steps its counter before it draws, so a stream begins at counter 1. */
    uint64_t counter = 1, extra_counter = 1, words[CHUNK / 4], extra[4];
    uint16_t cells[CHUNK], ambiguous[CHUNK];
    float values[CHUNK];
    int extra_used = 4;
    Py_ssize_t total = rows * size, column = 0;
    for (Py_ssize_t done = 0; done < total; done += CHUNK) {
        Py_ssize_t count = total - done < CHUNK ? total - done : CHUNK;
        for (int i = 0; i < CHUNK / 4; i += 4) philox(counter++, 0, block, key, words + i);
        memcpy(cells, words, sizeof words);
        Py_ssize_t unsure = 0;
        for (Py_ssize_t i = 0; i < count; i++) {
            values[i] = t->steps[cells[i]];
            ambiguous[unsure] = (uint16_t)i;
            unsure += values[i] != values[i];
        }
        for (Py_ssize_t i = 0; i < unsure; i++) {
            if (extra_used == 4) {
                philox(extra_counter++, 1, block, key, extra);
                extra_used = 0;
            }
            values[ambiguous[i]] = refine(t, cells[ambiguous[i]], (int64_t)(extra[extra_used++] >> 1));
        }
        for (Py_ssize_t i = 0; i < count;) {
            Py_ssize_t run = size - column < count - i ? size - column : count - i;
            for (Py_ssize_t j = 0; j < run; j++) out[done + i + j] = (values[i + j] + centre[column + j]) / levels;
            i += run;
            column = column + run == size ? 0 : column + run;
        }
    }
}

static PyObject *py_fill(PyObject *self, PyObject *args) {
    Py_buffer out, centre, steps, start, low, key;
    float levels;
    unsigned long long block;
    if (!PyArg_ParseTuple(args, "w*y*fy*y*y*y*K", &out, &centre, &levels, &steps, &start, &low, &key, &block))
        return NULL;
    Py_ssize_t size = centre.len / (Py_ssize_t)sizeof(float);
    int fits = size > 0 && out.len % centre.len == 0 && steps.len == 65536 * (Py_ssize_t)sizeof(float) &&
               start.len == 32769 * (Py_ssize_t)sizeof(int32_t) && key.len == 16;
    if (fits) {
        table t = {steps.buf, start.buf, low.buf, (int32_t)(low.len / (Py_ssize_t)sizeof(int64_t))};
        Py_BEGIN_ALLOW_THREADS
        fill(out.buf, out.len / centre.len, size, centre.buf, levels, &t, key.buf, block);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&out), PyBuffer_Release(&centre), PyBuffer_Release(&steps);
    PyBuffer_Release(&start), PyBuffer_Release(&low), PyBuffer_Release(&key);
    if (!fits) {
        PyErr_SetString(PyExc_ValueError, "grid kernel: arrays of unexpected size");
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"fill", py_fill, METH_VARARGS,
     "fill(out, centre, levels, steps, start, low, key, block): noisy copies of a block into out."},
    {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_grid_kernel", NULL, -1, methods, NULL, NULL, NULL, NULL};
PyMODINIT_FUNC PyInit__grid_kernel(void) { return PyModule_Create(&module); }
