//go:build !noasm

#include "textflag.h"

// func prefetch(p unsafe.Pointer, n int)
TEXT ·prefetch(SB), NOSPLIT, $0-16
	MOVQ p+0(FP), AX
	MOVQ n+8(FP), CX
loop:
	PREFETCHT0 (AX)
	ADDQ $64, AX
	SUBQ $64, CX
	JG   loop
	RET

// func match32(tags unsafe.Pointer, tag uint64) uint64
TEXT ·match32(SB), NOSPLIT, $0-24
	MOVQ         tags+0(FP), AX
	MOVQ         tag+8(FP), CX
	VMOVD        CX, X0
	VPBROADCASTB X0, Y0
	VPCMPEQB     (AX), Y0, Y1
	VPCMPEQB     32(AX), Y0, Y2
	VPMOVMSKB    Y1, AX
	VPMOVMSKB    Y2, CX
	VZEROUPPER
	SHLQ         $32, CX
	ORQ          CX, AX
	MOVQ         AX, ret+16(FP)
	RET
