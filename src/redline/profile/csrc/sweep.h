/* Shared by the files of redline.profile._sweep. */
#ifndef REDLINE_SWEEP_H
#define REDLINE_SWEEP_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

extern PyMethodDef rl_decode_methods[];
extern PyMethodDef rl_batch_methods[];
extern PyMethodDef rl_row_methods[];
extern PyMethodDef rl_tick_methods[];
extern PyMethodDef rl_call_methods[];

#endif
