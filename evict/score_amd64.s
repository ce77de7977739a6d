//go:build !noasm

#include "textflag.h"

// What node n of a tree, counted from 1 by levels, leaves of 32 leaves when a sample goes right: all but those below its left child. Leaf
// 0 is the highest bit.
DATA kept<>+4(SB)/4, $0x0000ffff
DATA kept<>+8(SB)/4, $0x00ffffff
DATA kept<>+12(SB)/4, $0xffff00ff
DATA kept<>+16(SB)/4, $0x0fffffff
DATA kept<>+20(SB)/4, $0xff0fffff
DATA kept<>+24(SB)/4, $0xffff0fff
DATA kept<>+28(SB)/4, $0xffffff0f
DATA kept<>+32(SB)/4, $0x3fffffff
DATA kept<>+36(SB)/4, $0xf3ffffff
DATA kept<>+40(SB)/4, $0xff3fffff
DATA kept<>+44(SB)/4, $0xfff3ffff
DATA kept<>+48(SB)/4, $0xffff3fff
DATA kept<>+52(SB)/4, $0xfffff3ff
DATA kept<>+56(SB)/4, $0xffffff3f
DATA kept<>+60(SB)/4, $0xfffffff3
DATA kept<>+64(SB)/4, $0x7fffffff
DATA kept<>+68(SB)/4, $0xdfffffff
DATA kept<>+72(SB)/4, $0xf7ffffff
DATA kept<>+76(SB)/4, $0xfdffffff
DATA kept<>+80(SB)/4, $0xff7fffff
DATA kept<>+84(SB)/4, $0xffdfffff
DATA kept<>+88(SB)/4, $0xfff7ffff
DATA kept<>+92(SB)/4, $0xfffdffff
DATA kept<>+96(SB)/4, $0xffff7fff
DATA kept<>+100(SB)/4, $0xffffdfff
DATA kept<>+104(SB)/4, $0xfffff7ff
DATA kept<>+108(SB)/4, $0xfffffdff
DATA kept<>+112(SB)/4, $0xffffff7f
DATA kept<>+116(SB)/4, $0xffffffdf
DATA kept<>+120(SB)/4, $0xfffffff7
DATA kept<>+124(SB)/4, $0xfffffffd
GLOBL kept<>(SB), RODATA, $128

DATA lanes<>+0(SB)/4, $0
DATA lanes<>+4(SB)/4, $1
DATA lanes<>+8(SB)/4, $2
DATA lanes<>+12(SB)/4, $3
DATA lanes<>+16(SB)/4, $4
DATA lanes<>+20(SB)/4, $5
DATA lanes<>+24(SB)/4, $6
DATA lanes<>+28(SB)/4, $7
DATA lanes<>+32(SB)/4, $8
DATA lanes<>+36(SB)/4, $9
DATA lanes<>+40(SB)/4, $10
DATA lanes<>+44(SB)/4, $11
DATA lanes<>+48(SB)/4, $12
DATA lanes<>+52(SB)/4, $13
DATA lanes<>+56(SB)/4, $14
DATA lanes<>+60(SB)/4, $15
GLOBL lanes<>(SB), RODATA, $64

// SORTABLE makes floats integers of the same order: no negative zero, and all bits but the sign turned around where that is set.
// Z30 is 0, Z31 the largest integer.
#define SORTABLE(z, t) \
	VADDPS     Z30, z, z;      \
	VPSRAD     $31, z, t;      \
	VPTERNLOGD $0x78, Z31, t, z

#define CONSTANTS \
	VPXORD   Z30, Z30, Z30;   \
	VPTERNLOGD $0xff, Z31, Z31, Z31; \
	VPSRLD   $1, Z31, Z31

// func spread(x *columns, samples *Sample, n, features int)
// Sixteen samples at a time are gathered feature by feature.
TEXT ·spread(SB), NOSPLIT, $0-32
	MOVQ x+0(FP), DI
	MOVQ samples+8(FP), SI
	MOVQ n+16(FP), CX
	MOVQ features+24(FP), DX
	CONSTANTS
	VMOVDQU32 lanes<>(SB), Z1
	MOVL      DX, AX
	SHLL      $2, AX
	VPBROADCASTD AX, Z2
	VPMULLD   Z2, Z1, Z1       // where each sample begins, in bytes
	SHLQ      $4, AX           // bytes of 16 samples
vector:
	MOVL $0xffff, BX
	CMPQ CX, $16
	JGE  full
	MOVL $1, BX
	SHLL CX, BX
	DECL BX
full:
	MOVQ DX, R8
	MOVQ SI, R9
	MOVQ DI, R10
feature:
	KMOVW      BX, K1
	VPXORD     Z0, Z0, Z0
	VGATHERDPS (R9)(Z1*1), K1, Z0
	SORTABLE(Z0, Z3)
	VMOVDQU32  Z0, (R10)
	ADDQ       $4, R9
	ADDQ       $256, R10
	DECQ       R8
	JNZ        feature
	ADDQ AX, SI
	ADDQ $64, DI
	SUBQ $16, CX
	JG   vector
	VZEROUPPER
	RET

// NODE takes leaves away from the samples that go right at node n, of which 16 are in z. SI has the columns, R8 the tree's keys and R9 its
// offsets.
#define NODE1(n) \
	MOVWLZX      (2*n)(R9), R12;          \
	VPBROADCASTD (4*n)(R8), Z8;           \
	VPBROADCASTD kept<>+(4*n)(SB), Z9;    \
	VPCMPD       $1, (SI)(R12*1), Z8, K1; \
	VPANDD       Z9, Z0, K1, Z0

// SINGLE is NODE1 with the offset in the lowest bits of R12, which it shifts out, and what is kept in a register: with one vector
// only, what takes time is loads.
#define SINGLE(n, k, z) \
	MOVWLZX      R12, R13;                \
	SHRQ         $16, R12;                \
	VPBROADCASTD (4*n)(R8), Z8;           \
	VPCMPD       $1, (SI)(R13*1), Z8, k;  \
	VPANDD       z, Z0, k, Z0

#define SINGLE_LOADED(n, k) \
	VPBROADCASTD kept<>+(4*n)(SB), Z9; \
	SINGLE(n, k, Z9)

#define OFFSETS(n) MOVQ (2*n)(R9), R12

#define NODE2(n) \
	NODE1(n);                               \
	VPCMPD       $1, 64(SI)(R12*1), Z8, K2; \
	VPANDD       Z9, Z1, K2, Z1

#define NODE4(n) \
	NODE2(n);                                \
	VPCMPD       $1, 128(SI)(R12*1), Z8, K3; \
	VPANDD       Z9, Z2, K3, Z2;             \
	VPCMPD       $1, 192(SI)(R12*1), Z8, K4; \
	VPANDD       Z9, Z3, K4, Z3

#define NODES(node) \
	node(1);  node(2);  node(3);  node(4);  node(5);  node(6);  node(7);  node(8);  \
	node(9);  node(10); node(11); node(12); node(13); node(14); node(15); node(16); \
	node(17); node(18); node(19); node(20); node(21); node(22); node(23); node(24); \
	node(25); node(26); node(27); node(28); node(29); node(30); node(31)

// LEAF adds the first leaf that is left to the sums. Z10 and Z11 are the tree's leaves.
#define LEAF(z, at) \
	VPLZCNTD  z, z;           \
	VPERMI2PS Z11, Z10, z;    \
	VADDPS    at(R11), z, z;  \
	VMOVUPS   z, at(R11)

// BEGIN has all leaves left and points R11 at the sums of the tree.
#define BEGIN \
	VPTERNLOGD $0xff, Z0, Z0, Z0; \
	VMOVDQA32 Z0, Z1;             \
	VMOVDQA32 Z0, Z2;             \
	VMOVDQA32 Z0, Z3;             \
	VMOVUPS   (R10), Z10;         \
	VMOVUPS   64(R10), Z11;       \
	MOVQ      BX, R11;            \
	ANDQ      $15, R11;           \
	SHLQ      $8, R11;            \
	ADDQ      DI, R11

#define NEXT \
	ADDQ $128, R8;  \
	ADDQ $64, R9;   \
	ADDQ $128, R10; \
	INCQ BX;        \
	CMPQ BX, CX

// func score(sums *partials, x *columns, keys *int32, offsets *uint16, leaves *float32, trees, vectors int)
TEXT ·score(SB), NOSPLIT, $0-56
	MOVQ sums+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ keys+16(FP), R8
	MOVQ offsets+24(FP), R9
	MOVQ leaves+32(FP), R10
	MOVQ trees+40(FP), CX
	MOVQ vectors+48(FP), DX
	XORQ BX, BX
	CMPQ DX, $1
	JEQ  one
	CMPQ DX, $2
	JEQ  two
four:
	BEGIN
	NODES(NODE4)
	LEAF(Z0, 0)
	LEAF(Z1, 64)
	LEAF(Z2, 128)
	LEAF(Z3, 192)
	NEXT
	JNE  four
	VZEROUPPER
	RET
two:
	BEGIN
	NODES(NODE2)
	LEAF(Z0, 0)
	LEAF(Z1, 64)
	NEXT
	JNE  two
	VZEROUPPER
	RET
one:
	VPBROADCASTD kept<>+4(SB), Z12
	VPBROADCASTD kept<>+8(SB), Z13
	VPBROADCASTD kept<>+12(SB), Z14
	VPBROADCASTD kept<>+16(SB), Z15
	VPBROADCASTD kept<>+20(SB), Z16
	VPBROADCASTD kept<>+24(SB), Z17
	VPBROADCASTD kept<>+28(SB), Z18
	VPBROADCASTD kept<>+32(SB), Z19
	VPBROADCASTD kept<>+36(SB), Z20
	VPBROADCASTD kept<>+40(SB), Z21
	VPBROADCASTD kept<>+44(SB), Z22
	VPBROADCASTD kept<>+48(SB), Z23
	VPBROADCASTD kept<>+52(SB), Z24
	VPBROADCASTD kept<>+56(SB), Z25
	VPBROADCASTD kept<>+60(SB), Z26
	VPBROADCASTD kept<>+64(SB), Z27
	VPBROADCASTD kept<>+68(SB), Z28
	VPBROADCASTD kept<>+72(SB), Z29
	VPBROADCASTD kept<>+76(SB), Z30
	VPBROADCASTD kept<>+80(SB), Z31
oneTree:
	BEGIN
	OFFSETS(0)
	SHRQ $16, R12
	SINGLE(1, K2, Z12)
	SINGLE(2, K3, Z13)
	SINGLE(3, K4, Z14)
	OFFSETS(4)
	SINGLE(4, K1, Z15)
	SINGLE(5, K2, Z16)
	SINGLE(6, K3, Z17)
	SINGLE(7, K4, Z18)
	OFFSETS(8)
	SINGLE(8, K1, Z19)
	SINGLE(9, K2, Z20)
	SINGLE(10, K3, Z21)
	SINGLE(11, K4, Z22)
	OFFSETS(12)
	SINGLE(12, K1, Z23)
	SINGLE(13, K2, Z24)
	SINGLE(14, K3, Z25)
	SINGLE(15, K4, Z26)
	OFFSETS(16)
	SINGLE(16, K1, Z27)
	SINGLE(17, K2, Z28)
	SINGLE(18, K3, Z29)
	SINGLE(19, K4, Z30)
	OFFSETS(20)
	SINGLE(20, K1, Z31)
	SINGLE_LOADED(21, K2)
	SINGLE_LOADED(22, K3)
	SINGLE_LOADED(23, K4)
	OFFSETS(24)
	SINGLE_LOADED(24, K1)
	SINGLE_LOADED(25, K2)
	SINGLE_LOADED(26, K3)
	SINGLE_LOADED(27, K4)
	OFFSETS(28)
	SINGLE_LOADED(28, K1)
	SINGLE_LOADED(29, K2)
	SINGLE_LOADED(30, K3)
	SINGLE_LOADED(31, K4)
	LEAF(Z0, 0)
	NEXT
	JNE  oneTree
	VZEROUPPER
	RET

// COMPARE writes a bit for each of 16 nodes: whether the sample's feature, out of Z0 to Z2, is above the key.
#define COMPARE(at) \
	VPMOVZXBD at(R9), Z3;            \
	VPTESTMD  Z29, Z3, K2;           \
	VMOVDQA32 Z3, Z4;                \
	VPERMI2D  Z1, Z0, Z3;            \
	VPERMD    Z2, Z4, K2, Z3;        \
	VPCMPD    $6, (4*at)(R8), Z3, K1; \
	KMOVW     K1, (at/8)(R11)

// DOWN goes to a child: Z5 has a node of each tree, Z6 the bits of its nodes.
#define DOWN \
	VPSRLVD Z5, Z6, Z7;   \
	VPANDD  Z28, Z7, Z7;  \
	VPADDD  Z5, Z5, Z5;   \
	VPADDD  Z7, Z5, Z5

// func scoreOne(x *Sample, keys *int32, features *uint8, leaves *float32, groups int) float32
// Nodes side by side are compared, then 16 trees at a time are walked along the bits.
TEXT ·scoreOne(SB), 0, $1024-44
	MOVQ x+0(FP), SI
	MOVQ keys+8(FP), R8
	MOVQ features+16(FP), R9
	MOVQ leaves+24(FP), R10
	MOVQ groups+32(FP), CX
	CONSTANTS
	MOVL         $1, AX
	VPBROADCASTD AX, Z28
	VPSLLD       $5, Z28, Z29
	MOVL         $0xf, AX         // 36 features
	KMOVW        AX, K3
	VMOVUPS      (SI), Z0
	VMOVUPS      64(SI), Z1
	VMOVUPS.Z    128(SI), K3, Z2
	SORTABLE(Z0, Z3)
	SORTABLE(Z1, Z3)
	SORTABLE(Z2, Z3)
	LEAQ bits-1024(SP), R11
	MOVQ CX, DX
	SHLQ $3, DX
pair:
	COMPARE(0)
	COMPARE(16)
	COMPARE(32)
	COMPARE(48)
	ADDQ $256, R8
	ADDQ $64, R9
	ADDQ $8, R11
	DECQ DX
	JNZ  pair
	LEAQ      bits-1024(SP), R11
	VMOVDQU32 lanes<>(SB), Z9
	VPSLLD    $5, Z9, Z9
	VPXORD    Z10, Z10, Z10
	KXNORW    K0, K0, K3
walk:
	VMOVDQU32  (R11), Z6
	VMOVDQA32  Z28, Z5
	DOWN
	DOWN
	DOWN
	DOWN
	DOWN
	VPADDD     Z9, Z5, Z5
	KMOVW      K3, K1
	VPXORD     Z8, Z8, Z8
	VGATHERDPS -128(R10)(Z5*4), K1, Z8
	VADDPS     Z8, Z10, Z10
	ADDQ       $64, R11
	ADDQ       $2048, R10
	DECQ       CX
	JNZ        walk
	VEXTRACTF64X4 $1, Z10, Y1
	VADDPS        Y1, Y10, Y0
	VEXTRACTF128  $1, Y0, X1
	VADDPS        X1, X0, X0
	VMOVHLPS      X0, X0, X1
	VADDPS        X1, X0, X0
	VMOVSHDUP     X0, X1
	VADDSS        X1, X0, X0
	VZEROUPPER
	MOVSS         X0, ret+40(FP)
	RET

// func prefetch(p unsafe.Pointer)
TEXT ·prefetch(SB), NOSPLIT, $0-8
	MOVQ p+0(FP), AX
	PREFETCHT0 (AX)
	RET

// func prefetchHistory(h *history)
TEXT ·prefetchHistory(SB), NOSPLIT, $0-8
	MOVQ h+0(FP), AX
	PREFETCHT0 (AX)
	PREFETCHT0 64(AX)
	PREFETCHT0 128(AX)
	RET
