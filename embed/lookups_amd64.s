//go:build !noasm && !race

#include "go_asm.h"
#include "textflag.h"

// func runWide(f *flight)
//
// One turn of the loop is one of runPlain's. SI is a set, AX a hash, CX a slot, DX what else is needed; R8 … R13 are the flight's
// fields, R14 where row BX goes.
TEXT ·runWide(SB), NOSPLIT, $0-8
	MOVQ f+0(FP), DI
	MOVQ flight_hashes(DI), R8
	MOVQ flight_sets(DI), R9
	MOVQ flight_masks(DI), R10
	MOVQ flight_slots(DI), R11
	MOVQ flight_origin(DI), R12
	MOVQ flight_rowBytes(DI), R13
	MOVQ flight_out(DI), R14
	MOVQ flight_from(DI), BX

turn:
	// ask for a set
	MOVQ       (const_setAhead*8)(R9)(BX*8), SI
	PREFETCHT0 (SI)
	PREFETCHT0 64(SI)

	// compare tags, ask for keys
	MOVQ         (const_tagAhead*8)(R9)(BX*8), SI
	MOVBLZX      (const_tagAhead*8)(R8)(BX*8), AX
	CMPL         AX, $1
	ADCL         $0, AX
	VPBROADCASTB AX, Z16
	VPCMPEQB     (SI), Z16, K1
	KMOVQ        K1, DX
	MOVQ         DX, (const_tagAhead*8)(R10)(BX*8)
	TESTQ        DX, DX
	JZ           compareKeys

askKeys:
	TZCNTQ     DX, CX
	SHLQ       $4, CX
	PREFETCHT0 set_slots(SI)(CX*1)
	BLSRQ      DX, DX
	JNZ        askKeys

compareKeys:
	MOVQ  (const_rowAhead*8)(R10)(BX*8), DX
	TESTQ DX, DX
	JZ    missed
	MOVQ  (const_rowAhead*8)(R9)(BX*8), SI
	MOVQ  (const_rowAhead*8)(R8)(BX*8), AX

nextKey:
	TZCNTQ DX, R15
	MOVQ   R15, CX
	SHLQ   $4, R15
	CMPQ   AX, set_slots(SI)(R15*1)
	JE     askRow
	BLSRQ  DX, DX
	JNZ    nextKey

missed: // is it in the table?
	MOVQ $-1, CX
	LEAQ const_rowAhead(BX), AX
	CMPQ AX, flight_count(DI)
	JAE  compared // also before the first key
	MOVQ flight_keys(DI), DX
	MOVQ (DX)(AX*8), AX
	CMPQ AX, flight_rows(DI)
	JAE  compared
	MOVQ flight_present(DI), DX
	MOVQ AX, SI
	SHRQ $6, SI
	MOVQ (DX)(SI*8), DX
	BTQ  AX, DX
	JCC  compared
	MOVQ $const_stored, CX
	MOVQ AX, DX
	IMULQ R13, DX
	ADDQ flight_table(DI), DX
	LEAQ (DX)(R13*1), AX
	JMP  askLine

askRow:
	MOVQ  CX, DX
	IMULQ R13, DX
	ADDQ  set_rows(SI), DX
	ADDQ  R12, DX
	LEAQ  (DX)(R13*1), AX

askLine:
	PREFETCHT2 (DX)
	ADDQ       $64, DX
	CMPQ       DX, AX
	JLT        askLine

compared:
	MOVQ CX, (const_rowAhead*8)(R11)(BX*8)

	// copy
	MOVQ    (R11)(BX*8), CX
	MOVQ    (R9)(BX*8), SI
	TESTQ   CX, CX
	JS      notCached
	MOVQ    (R8)(BX*8), AX
	MOVL    set_version(SI), R15
	TESTL   $1, R15
	JNZ     broken
	MOVBLZX AX, DX
	CMPL    DX, $1
	ADCL    $0, DX
	CMPB    DX, (SI)(CX*1)
	JNE     broken
	MOVQ    CX, DX
	SHLQ    $4, DX
	CMPQ    AX, set_slots(SI)(DX*1)
	JNE     broken
	IMULQ   R13, CX
	ADDQ    set_rows(SI), CX
	ADDQ    R12, CX
	MOVQ    R13, DX
	MOVQ    R14, AX

copyLines:
	CMPQ      DX, $512
	JLT       copyLine
	VMOVDQU64 (CX), Z16
	VMOVDQU64 64(CX), Z17
	VMOVDQU64 128(CX), Z18
	VMOVDQU64 192(CX), Z19
	VMOVDQU64 256(CX), Z20
	VMOVDQU64 320(CX), Z21
	VMOVDQU64 384(CX), Z22
	VMOVDQU64 448(CX), Z23
	VMOVDQU64 Z16, (AX)
	VMOVDQU64 Z17, 64(AX)
	VMOVDQU64 Z18, 128(AX)
	VMOVDQU64 Z19, 192(AX)
	VMOVDQU64 Z20, 256(AX)
	VMOVDQU64 Z21, 320(AX)
	VMOVDQU64 Z22, 384(AX)
	VMOVDQU64 Z23, 448(AX)
	ADDQ      $512, CX
	ADDQ      $512, AX
	SUBQ      $512, DX
	JNZ       copyLines
	JMP       copied

copyLine:
	VMOVDQU64 (CX), Z16
	VMOVDQU64 Z16, (AX)
	ADDQ      $64, CX
	ADDQ      $64, AX
	SUBQ      $64, DX
	JNZ       copyLine

copied:
	CMPL R15, set_version(SI)
	JE   next

broken:
	MOVQ $const_disturbed, (R11)(BX*8)
	JMP  next

notCached:
	CMPQ  CX, $const_stored
	JNE   next
	MOVL  set_version(SI), R15
	MOVQ  flight_keys(DI), CX
	MOVQ  (CX)(BX*8), CX
	IMULQ R13, CX
	ADDQ  flight_table(DI), CX
	MOVQ  R13, DX
	MOVQ  R14, AX
	JMP   copyLines

next:
	ADDQ R13, R14
	INCQ BX
	CMPQ BX, flight_to(DI)
	JLT  turn
	RET

DATA ·lanes+0(SB)/8, $0
DATA ·lanes+8(SB)/8, $1
DATA ·lanes+16(SB)/8, $2
DATA ·lanes+24(SB)/8, $3
DATA ·lanes+32(SB)/8, $4
DATA ·lanes+40(SB)/8, $5
DATA ·lanes+48(SB)/8, $6
DATA ·lanes+56(SB)/8, $7
GLOBL ·lanes(SB), RODATA|NOPTR, $64

// func markWide(m *marking)
//
// Z0 has slots, Z1 sets, Z2 where their stamps are, Z3 stamps, Z4 the time; Z5 … Z7 the time in units of short, long and last. Z8 and Z9 become the
// counts. K1 has the keys with a slot.
TEXT ·markWide(SB), NOSPLIT, $0-8
	MOVQ         m+0(FP), DI
	MOVQ         marking_sets(DI), R9
	MOVQ         marking_slots(DI), R11
	MOVQ         marking_n(DI), CX
	MOVQ         marking_more(DI), R10
	VPBROADCASTQ marking_now(DI), Z4
	VPADDQ       ·lanes(SB), Z4, Z4
	VMOVQ        marking_last(DI), X24
	VMOVQ        marking_short(DI), X25
	VMOVQ        marking_long(DI), X26
	MOVQ         $8, AX
	VPBROADCASTQ AX, Z20
	MOVQ         $0xFFFFF, AX
	VPBROADCASTQ AX, Z21
	MOVQ         $255, AX
	VPBROADCASTQ AX, Z22
	VPXORQ       Z23, Z23, Z23
	XORQ         R8, R8
	XORQ         BX, BX

eight:
	MOVQ CX, AX
	SUBQ BX, AX
	JLE  done
	MOVQ $8, DX
	CMPQ AX, DX
	CMOVQGT DX, AX // BZHI looks at eight bits of AX only
	MOVQ $-1, DX
	BZHIQ AX, DX, DX
	KMOVB DX, K4
	VMOVDQU64.Z (R11)(BX*8), K4, Z0
	VPCMPQ      $5, Z23, Z0, K4, K1
	VMOVDQU64.Z (R9)(BX*8), K4, Z1
	VPSLLQ      $4, Z0, Z2
	VPADDQ      Z1, Z2, Z2
	KMOVB       K1, K2
	VPXORQ      Z3, Z3, Z3
	VPGATHERQQ  (set_slots+8)(R8)(Z2*1), K2, Z3
	VPSRLQ      X25, Z4, Z5
	VPSRLQ      X26, Z4, Z6
	VPSRLQ      X24, Z4, Z7

	// how far the counts are behind, 20 bits with sign
	VPSRLQ $20, Z3, Z8
	VPSUBQ Z5, Z8, Z8
	VPSLLQ $44, Z8, Z8
	VPSRAQ $44, Z8, Z8
	VPSUBQ Z6, Z3, Z9
	VPSLLQ $44, Z9, Z9
	VPSRAQ $44, Z9, Z9

	// plus one use
	VPABSQ     Z8, Z10
	VPMINUQ    Z22, Z10, Z10
	KXNORB     K3, K3, K3
	VPGATHERQQ (R10)(Z10*8), K3, Z11
	VPABSQ     Z9, Z12
	VPMINUQ    Z22, Z12, Z12
	KXNORB     K3, K3, K3
	VPGATHERQQ (R10)(Z12*8), K3, Z13
	VPMAXSQ    Z23, Z8, Z8
	VPADDQ     Z11, Z8, Z8
	VPADDQ     Z5, Z8, Z8
	VPANDQ     Z21, Z8, Z8
	VPSLLQ     $20, Z8, Z8
	VPMAXSQ    Z23, Z9, Z9
	VPADDQ     Z13, Z9, Z9
	VPADDQ     Z6, Z9, Z9
	VPANDQ     Z21, Z9, Z9
	VPSLLQ     $40, Z7, Z7
	VPORQ      Z8, Z7, Z7
	VPORQ      Z9, Z7, Z7
	KMOVB      K1, K2
	VPSCATTERQQ Z7, K2, (set_slots+8)(R8)(Z2*1)
	VPADDQ     Z20, Z4, Z4
	ADDQ       $8, BX
	JMP        eight

done:
	VZEROUPPER
	RET
