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

// func prefetchFar(p unsafe.Pointer, n int)
TEXT ·prefetchFar(SB), NOSPLIT, $0-16
	MOVQ p+0(FP), AX
	MOVQ n+8(FP), CX
lines:
	CMPQ CX, $512
	JLT  line
	PREFETCHT2 0(AX)
	PREFETCHT2 64(AX)
	PREFETCHT2 128(AX)
	PREFETCHT2 192(AX)
	PREFETCHT2 256(AX)
	PREFETCHT2 320(AX)
	PREFETCHT2 384(AX)
	PREFETCHT2 448(AX)
	ADDQ $512, AX
	SUBQ $512, CX
	JG   lines
	RET
line:
	PREFETCHT2 (AX)
	ADDQ $64, AX
	SUBQ $64, CX
	JG   line
	RET

// func prefetchWrite(p unsafe.Pointer, n int)
TEXT ·prefetchWrite(SB), NOSPLIT, $0-16
	MOVQ p+0(FP), AX
	MOVQ n+8(FP), CX
loop:
	BYTE $0x0F; BYTE $0x0D; BYTE $0x08 // PREFETCHW (AX), nothing where it is not known
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

// func copyWide(dst, src unsafe.Pointer, n int)
// n is a multiple of 512. All of 512 bytes are asked for before the first is needed.
TEXT ·copyWide(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
rows:
	VMOVDQU64 (SI), Z16
	VMOVDQU64 64(SI), Z17
	VMOVDQU64 128(SI), Z18
	VMOVDQU64 192(SI), Z19
	VMOVDQU64 256(SI), Z20
	VMOVDQU64 320(SI), Z21
	VMOVDQU64 384(SI), Z22
	VMOVDQU64 448(SI), Z23
	VMOVDQU64 Z16, (DI)
	VMOVDQU64 Z17, 64(DI)
	VMOVDQU64 Z18, 128(DI)
	VMOVDQU64 Z19, 192(DI)
	VMOVDQU64 Z20, 256(DI)
	VMOVDQU64 Z21, 320(DI)
	VMOVDQU64 Z22, 384(DI)
	VMOVDQU64 Z23, 448(DI)
	ADDQ $512, SI
	ADDQ $512, DI
	SUBQ $512, CX
	JG   rows
	RET
