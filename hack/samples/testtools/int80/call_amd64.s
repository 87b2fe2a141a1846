#include "textflag.h"

// func call386(number, a, b, c uint32) int32
//
// Assembly may use every register but SP here: Go's wrapper around it
// restores g and the zero register.
TEXT ·call386(SB), NOSPLIT, $0-20
	MOVL number+0(FP), AX
	MOVL a+4(FP), BX
	MOVL b+8(FP), CX
	MOVL c+12(FP), DX
	XORL SI, SI
	XORL DI, DI
	INT  $0x80
	MOVL AX, ret+16(FP)
	RET
