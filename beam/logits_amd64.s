//go:build !noasm

#include "textflag.h"

// The two passes over logits for AVX2 and FMA, 64 logits a turn. The exponentials are bound by arithmetic:
// 15 instructions for 8 of them, and AVX-512 ran no faster. See logits_plain.go for the method.

DATA  consts<>+0(SB)/4, $0xc2ac0000  // -86
DATA  consts<>+4(SB)/4, $0x4b400000  // 1.5 · 2^23
DATA  consts<>+8(SB)/4, $0x3fb8aa3b  // log2(e)
DATA consts<>+12(SB)/4, $0x3920fdde  // p0
DATA consts<>+16(SB)/4, $0x3aaf9f29  // p1
DATA consts<>+20(SB)/4, $0x3c1d96a6  // p2
DATA consts<>+24(SB)/4, $0x3d635774  // p3
DATA consts<>+28(SB)/4, $0x3e75fdee  // p4
DATA consts<>+32(SB)/4, $0x3f317218  // p5
DATA consts<>+36(SB)/4, $0x3f800000  // 1
GLOBL consts<>(SB), RODATA|NOPTR, $40

// func cpuid(leaf, sub uint32) (eax, ebx, ecx, edx uint32)
TEXT ·cpuid(SB), NOSPLIT, $0-24
	MOVL leaf+0(FP), AX
	MOVL sub+4(FP), CX
	CPUID
	MOVL AX, eax+8(FP)
	MOVL BX, ebx+12(FP)
	MOVL CX, ecx+16(FP)
	MOVL DX, edx+20(FP)
	RET

// func xgetbv() uint32
TEXT ·xgetbv(SB), NOSPLIT, $0-4
	XORL CX, CX
	XGETBV
	MOVL AX, ret+0(FP)
	RET

// LOAD2 leaves the larger of two vectors in a and notes in Y15 where either has a NaN.
#define LOAD2(off, a, b, s) \
	VMOVUPS off(SI), a; \
	VMOVUPS (off+32)(SI), b; \
	VCMPPS $3, b, a, s; \
	VORPS s, Y15, Y15; \
	VMAXPS b, a, a

// func maxesAVX2(x, out *float32, blocks int) bool
TEXT ·maxesAVX2(SB), NOSPLIT, $0-25
	MOVQ x+0(FP), SI
	MOVQ out+8(FP), DI
	MOVQ blocks+16(FP), CX
	VXORPS Y15, Y15, Y15
next:
	LOAD2(0, Y0, Y4, Y8)
	LOAD2(64, Y1, Y5, Y9)
	LOAD2(128, Y2, Y6, Y10)
	LOAD2(192, Y3, Y7, Y11)
	VMAXPS Y1, Y0, Y0
	VMAXPS Y3, Y2, Y2
	VMAXPS Y2, Y0, Y0
	VEXTRACTF128 $1, Y0, X1
	VMAXPS X1, X0, X0
	VPERMILPS $0x4e, X0, X1
	VMAXPS X1, X0, X0
	VPERMILPS $0xb1, X0, X1
	VMAXPS X1, X0, X0
	VMOVSS X0, (DI)
	ADDQ $256, SI
	ADDQ $4, DI
	DECQ CX
	JNZ next
	VMOVMSKPS Y15, AX
	TESTL AX, AX
	SETEQ ret+24(FP)
	VZEROUPPER
	RET

// EXP adds exp(logits at off - top) to Y15. Y0 … Y3 are scratch; Y4 is top; Y5 … Y14 are the constants.
#define EXP(off) \
	VMOVUPS off(SI), Y0; \
	VSUBPS Y4, Y0, Y0; \
	VMAXPS Y5, Y0, Y0; \
	VMOVAPS Y6, Y1; \
	VFMADD231PS Y7, Y0, Y1; \
	VSUBPS Y6, Y1, Y2; \
	VFMSUB213PS Y2, Y7, Y0; \
	VMOVAPS Y8, Y3; \
	VFMADD213PS Y9, Y0, Y3; \
	VFMADD213PS Y10, Y0, Y3; \
	VFMADD213PS Y11, Y0, Y3; \
	VFMADD213PS Y12, Y0, Y3; \
	VFMADD213PS Y13, Y0, Y3; \
	VFMADD213PS Y14, Y0, Y3; \
	VPSLLD $23, Y1, Y1; \
	VPADDD Y1, Y3, Y3; \
	VADDPS Y3, Y15, Y15

// func sumExpAVX2(x *float32, blocks int, top float32) float64
TEXT ·sumExpAVX2(SB), NOSPLIT, $32-32
	MOVQ x+0(FP), SI
	MOVQ blocks+8(FP), CX
	VBROADCASTSS top+16(FP), Y4
	VBROADCASTSS consts<>+0(SB), Y5
	VBROADCASTSS consts<>+4(SB), Y6
	VBROADCASTSS consts<>+8(SB), Y7
	VBROADCASTSS consts<>+12(SB), Y8
	VBROADCASTSS consts<>+16(SB), Y9
	VBROADCASTSS consts<>+20(SB), Y10
	VBROADCASTSS consts<>+24(SB), Y11
	VBROADCASTSS consts<>+28(SB), Y12
	VBROADCASTSS consts<>+32(SB), Y13
	VBROADCASTSS consts<>+36(SB), Y14
	VXORPD Y0, Y0, Y0
	VMOVUPD Y0, sum-32(SP)
next:
	VXORPS Y15, Y15, Y15
	EXP(0)
	EXP(32)
	EXP(64)
	EXP(96)
	EXP(128)
	EXP(160)
	EXP(192)
	EXP(224)
	VEXTRACTF128 $1, Y15, X0
	VCVTPS2PD X15, Y1
	VCVTPS2PD X0, Y0
	VADDPD Y1, Y0, Y0
	VADDPD sum-32(SP), Y0, Y0
	VMOVUPD Y0, sum-32(SP)
	ADDQ $256, SI
	DECQ CX
	JNZ next
	VEXTRACTF128 $1, Y0, X1
	VADDPD X1, X0, X0
	VPERMILPD $1, X0, X1
	VADDSD X1, X0, X0
	VMOVSD X0, ret+24(FP)
	VZEROUPPER
	RET
