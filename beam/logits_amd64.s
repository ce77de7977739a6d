//go:build !noasm

#include "textflag.h"

// The work on logits for AVX2 and FMA, 64 logits a turn. Arithmetic bounds it: 17 instructions for 8
// exponentials; AVX-512 gained a tenth. See logits_plain.go for the method.

DATA consts<>+0(SB)/8, $0xc2ac0000c2ac0000  // -86
DATA consts<>+8(SB)/8, $0xc2ac0000c2ac0000
DATA consts<>+16(SB)/8, $0xc2ac0000c2ac0000
DATA consts<>+24(SB)/8, $0xc2ac0000c2ac0000
DATA consts<>+32(SB)/8, $0x4b4000004b400000  // 1.5 · 2^23
DATA consts<>+40(SB)/8, $0x4b4000004b400000
DATA consts<>+48(SB)/8, $0x4b4000004b400000
DATA consts<>+56(SB)/8, $0x4b4000004b400000
DATA consts<>+64(SB)/8, $0x3fb8aa3b3fb8aa3b  // log2(e)
DATA consts<>+72(SB)/8, $0x3fb8aa3b3fb8aa3b
DATA consts<>+80(SB)/8, $0x3fb8aa3b3fb8aa3b
DATA consts<>+88(SB)/8, $0x3fb8aa3b3fb8aa3b
DATA consts<>+96(SB)/8, $0x3920fdde3920fdde  // p0
DATA consts<>+104(SB)/8, $0x3920fdde3920fdde
DATA consts<>+112(SB)/8, $0x3920fdde3920fdde
DATA consts<>+120(SB)/8, $0x3920fdde3920fdde
DATA consts<>+128(SB)/8, $0x3aaf9f293aaf9f29  // p1
DATA consts<>+136(SB)/8, $0x3aaf9f293aaf9f29
DATA consts<>+144(SB)/8, $0x3aaf9f293aaf9f29
DATA consts<>+152(SB)/8, $0x3aaf9f293aaf9f29
DATA consts<>+160(SB)/8, $0x3c1d96a63c1d96a6  // p2
DATA consts<>+168(SB)/8, $0x3c1d96a63c1d96a6
DATA consts<>+176(SB)/8, $0x3c1d96a63c1d96a6
DATA consts<>+184(SB)/8, $0x3c1d96a63c1d96a6
DATA consts<>+192(SB)/8, $0x3d6357743d635774  // p3
DATA consts<>+200(SB)/8, $0x3d6357743d635774
DATA consts<>+208(SB)/8, $0x3d6357743d635774
DATA consts<>+216(SB)/8, $0x3d6357743d635774
DATA consts<>+224(SB)/8, $0x3e75fdee3e75fdee  // p4
DATA consts<>+232(SB)/8, $0x3e75fdee3e75fdee
DATA consts<>+240(SB)/8, $0x3e75fdee3e75fdee
DATA consts<>+248(SB)/8, $0x3e75fdee3e75fdee
DATA consts<>+256(SB)/8, $0x3f3172183f317218  // p5
DATA consts<>+264(SB)/8, $0x3f3172183f317218
DATA consts<>+272(SB)/8, $0x3f3172183f317218
DATA consts<>+280(SB)/8, $0x3f3172183f317218
DATA consts<>+288(SB)/8, $0x3f8000003f800000  // 1
DATA consts<>+296(SB)/8, $0x3f8000003f800000
DATA consts<>+304(SB)/8, $0x3f8000003f800000
DATA consts<>+312(SB)/8, $0x3f8000003f800000
DATA consts<>+320(SB)/8, $0xff7fffffff7fffff  // the lowest finite number
DATA consts<>+328(SB)/8, $0xff7fffffff7fffff
DATA consts<>+336(SB)/8, $0xff7fffffff7fffff
DATA consts<>+344(SB)/8, $0xff7fffffff7fffff
GLOBL consts<>(SB), RODATA|NOPTR, $352

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

// LOAD2 leaves the larger of two vectors in a and notes in Y14 where either has a NaN.
#define LOAD2(off, a, b, s) \
	VMOVUPS off(SI), a; \
	VMOVUPS (off+32)(SI), b; \
	VCMPPS $3, b, a, s; \
	VORPS s, Y14, Y14; \
	VMAXPS b, a, a

// EXP leaves exp(Y0 - Y4) in Y3. Y1 and Y2 are scratch; Y5 … Y8 are constants.
#define EXP \
	VSUBPS Y4, Y0, Y0; \
	VMAXPS Y5, Y0, Y0; \
	VMOVAPS Y6, Y1; \
	VFMADD231PS Y7, Y0, Y1; \
	VSUBPS Y6, Y1, Y2; \
	VFMSUB213PS Y2, Y7, Y0; \
	VMOVAPS Y8, Y3; \
	VFMADD213PS consts<>+128(SB), Y0, Y3; \
	VFMADD213PS consts<>+160(SB), Y0, Y3; \
	VFMADD213PS consts<>+192(SB), Y0, Y3; \
	VFMADD213PS consts<>+224(SB), Y0, Y3; \
	VFMADD213PS consts<>+256(SB), Y0, Y3; \
	VFMADD213PS consts<>+288(SB), Y0, Y3; \
	VPSLLD $23, Y1, Y1; \
	VPADDD Y1, Y3, Y3

#define CONSTS \
	VMOVUPS consts<>+0(SB), Y5; \
	VMOVUPS consts<>+32(SB), Y6; \
	VMOVUPS consts<>+64(SB), Y7; \
	VMOVUPS consts<>+96(SB), Y8

#define ADDEXP(off) \
	VMOVUPS off(SI), Y0; \
	EXP; \
	VADDPS Y3, Y15, Y15

// func maxesAVX2(x, maxes *float32, blocks int) bool
TEXT ·maxesAVX2(SB), NOSPLIT, $0-25
	MOVQ x+0(FP), SI
	MOVQ maxes+8(FP), DI
	MOVQ blocks+16(FP), CX
	VXORPS Y14, Y14, Y14
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
	VMOVMSKPS Y14, AX
	TESTL AX, AX
	SETEQ ret+24(FP)
	VZEROUPPER
	RET

// func sumsAVX2(x, maxes, sums *float32, blocks int)
TEXT ·sumsAVX2(SB), NOSPLIT, $0-32
	MOVQ x+0(FP), SI
	MOVQ maxes+8(FP), DI
	MOVQ sums+16(FP), DX
	MOVQ blocks+24(FP), CX
	CONSTS
next:
	VBROADCASTSS (DI), Y4
	VMAXPS consts<>+320(SB), Y4, Y4
	VXORPS Y15, Y15, Y15
	ADDEXP(0)
	ADDEXP(32)
	ADDEXP(64)
	ADDEXP(96)
	ADDEXP(128)
	ADDEXP(160)
	ADDEXP(192)
	ADDEXP(224)
	VEXTRACTF128 $1, Y15, X0
	VADDPS X15, X0, X0
	VPERMILPS $0x4e, X0, X1
	VADDPS X1, X0, X0
	VPERMILPS $0xb1, X0, X1
	VADDSS X1, X0, X0
	VMOVSS X0, (DX)
	ADDQ $256, SI
	ADDQ $4, DI
	ADDQ $4, DX
	DECQ CX
	JNZ next
	VZEROUPPER
	RET

// func weighAVX2(maxes, sums *float32, groups int, top float32) float64
TEXT ·weighAVX2(SB), NOSPLIT, $0-40
	MOVQ maxes+0(FP), SI
	MOVQ sums+8(FP), DX
	MOVQ groups+16(FP), CX
	VBROADCASTSS top+24(FP), Y4
	CONSTS
	VXORPD Y15, Y15, Y15
next:
	VMOVUPS (SI), Y0
	EXP
	VMULPS (DX), Y3, Y3
	VEXTRACTF128 $1, Y3, X1
	VCVTPS2PD X3, Y0
	VCVTPS2PD X1, Y1
	VADDPD Y0, Y15, Y15
	VADDPD Y1, Y15, Y15
	ADDQ $32, SI
	ADDQ $32, DX
	DECQ CX
	JNZ next
	VEXTRACTF128 $1, Y15, X0
	VADDPD X15, X0, X0
	VPERMILPD $1, X0, X1
	VADDSD X1, X0, X0
	VMOVSD X0, ret+32(FP)
	VZEROUPPER
	RET
