//go:build !noasm

#include "textflag.h"

// A vector has 320 floats, of which the first 256 are the embedding: 1280 bytes. Sums are three of them, rows are
// three with the upper halves of floats, and a frame has the base, the places and the steps.

// func advanceAVX2(s *sums, row *rows, left *[Scales]float32)
TEXT ·advanceAVX2(SB), NOSPLIT, $0-24
	MOVQ         s+0(FP), DI
	MOVQ         row+8(FP), SI
	MOVQ         left+16(FP), DX
	VBROADCASTSS 0(DX), Y13
	VBROADCASTSS 4(DX), Y14
	VBROADCASTSS 8(DX), Y15
	MOVQ         $40, CX
loop:
	VPMOVZXWD (SI), Y3
	VPMOVZXWD 640(SI), Y4
	VPMOVZXWD 1280(SI), Y5
	VMULPS    (DI), Y13, Y0
	VMULPS    1280(DI), Y14, Y1
	VMULPS    2560(DI), Y15, Y2
	VPSLLD    $16, Y3, Y3
	VPSLLD    $16, Y4, Y4
	VPSLLD    $16, Y5, Y5
	VADDPS    Y3, Y0, Y0
	VADDPS    Y4, Y1, Y1
	VADDPS    Y5, Y2, Y2
	VMOVUPS   Y0, (DI)
	VMOVUPS   Y1, 1280(DI)
	VMOVUPS   Y2, 2560(DI)
	ADDQ      $16, SI
	ADDQ      $32, DI
	DECQ      CX
	JNZ       loop
	VZEROUPPER
	RET

// VALUE is the context at eight dimensions: the sums, base, and places × place.
#define VALUE(at, out) \
	VMOVUPS at(DI), out;           \
	VADDPS  1280+at(DI), out, out; \
	VADDPS  2560+at(DI), out, out; \
	VADDPS  at(SI), out, out;      \
	VMULPS  1280+at(SI), Y15, Y10; \
	VADDPS  Y10, out, out

DATA order<>+0(SB)/4, $0
DATA order<>+4(SB)/4, $4
DATA order<>+8(SB)/4, $1
DATA order<>+12(SB)/4, $5
DATA order<>+16(SB)/4, $2
DATA order<>+20(SB)/4, $6
DATA order<>+24(SB)/4, $3
DATA order<>+28(SB)/4, $7
GLOBL order<>(SB), RODATA, $32

DATA most<>+0(SB)/4, $0x42FE0000 // 127.0
GLOBL most<>(SB), RODATA, $4

// func expressAVX2(s *sums, f *frame, place float32, thresholds *[Planes]float32, out *[Width]int8) uint64
TEXT ·expressAVX2(SB), NOSPLIT, $0-48
	MOVQ         s+0(FP), DI
	MOVQ         f+8(FP), SI
	VBROADCASTSS place+16(FP), Y15
	MOVQ         thresholds+24(FP), R8
	MOVQ         out+32(FP), DX
	VBROADCASTSS 2560(SI), Y14
	VMOVDQU      order<>(SB), Y13
	VBROADCASTSS most<>(SB), Y12
	MOVQ         $8, CX
quantise:
	VALUE(0, Y0)
	VALUE(32, Y1)
	VALUE(64, Y2)
	VALUE(96, Y3)
	VMULPS    Y14, Y0, Y0
	VMULPS    Y14, Y1, Y1
	VMULPS    Y14, Y2, Y2
	VMULPS    Y14, Y3, Y3

	// What is too large for an integer would become the least one. What is no number becomes the most.
	VMINPS    Y12, Y0, Y0
	VMINPS    Y12, Y1, Y1
	VMINPS    Y12, Y2, Y2
	VMINPS    Y12, Y3, Y3
	VCVTPS2DQ Y0, Y0
	VCVTPS2DQ Y1, Y1
	VCVTPS2DQ Y2, Y2
	VCVTPS2DQ Y3, Y3
	VPACKSSDW Y1, Y0, Y0
	VPACKSSDW Y3, Y2, Y2
	VPACKSSWB Y2, Y0, Y0
	VPERMD    Y0, Y13, Y0
	VMOVDQU   Y0, (DX)
	ADDQ      $128, DI
	ADDQ      $128, SI
	ADDQ      $32, DX
	DECQ      CX
	JNZ       quantise

	// The projections follow; bits come in at the top, eight at a time.
	XORQ AX, AX
	MOVQ $8, CX
compare:
	VALUE(0, Y0)
	VMOVUPS   (R8), Y1
	VCMPPS    $0x11, Y0, Y1, Y2 // threshold < value
	VMOVMSKPS Y2, BX
	SHRQ      $8, AX
	SHLQ      $56, BX
	ORQ       BX, AX
	ADDQ      $32, DI
	ADDQ      $32, SI
	ADDQ      $32, R8
	DECQ      CX
	JNZ       compare
	VZEROUPPER
	MOVQ AX, ret+40(FP)
	RET

// func distanceAVX2(a, b *[Width]int8) int32
TEXT ·distanceAVX2(SB), NOSPLIT, $0-20
	MOVQ  a+0(FP), SI
	MOVQ  b+8(FP), DI
	VPXOR Y6, Y6, Y6
	VPXOR Y7, Y7, Y7
	MOVQ  $8, CX
loop:
	VPMOVSXBW (SI), Y0
	VPMOVSXBW (DI), Y1
	VPMOVSXBW 16(SI), Y2
	VPMOVSXBW 16(DI), Y3
	VPSUBW    Y1, Y0, Y0
	VPSUBW    Y3, Y2, Y2
	VPMADDWD  Y0, Y0, Y0
	VPMADDWD  Y2, Y2, Y2
	VPADDD    Y0, Y6, Y6
	VPADDD    Y2, Y7, Y7
	ADDQ      $32, SI
	ADDQ      $32, DI
	DECQ      CX
	JNZ       loop
	VPADDD       Y7, Y6, Y6
	VEXTRACTI128 $1, Y6, X0
	VPADDD       X0, X6, X0
	VPSHUFD      $0x4E, X0, X1
	VPADDD       X1, X0, X0
	VPSHUFD      $0xB1, X0, X1
	VPADDD       X1, X0, X0
	VMOVD        X0, AX
	VZEROUPPER
	MOVL         AX, ret+16(FP)
	RET

// func prefetch(v *[Width]int8)
TEXT ·prefetch(SB), NOSPLIT, $0-8
	MOVQ       v+0(FP), AX
	PREFETCHT0 (AX)
	PREFETCHT0 64(AX)
	PREFETCHT0 128(AX)
	PREFETCHT0 192(AX)
	RET
