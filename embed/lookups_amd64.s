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
