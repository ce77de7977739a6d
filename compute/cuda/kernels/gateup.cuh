// The text of wgmma for every width N of its result, which inline assembly wants spelled out: MMA(N)
// is the instruction d += a·b with a and b in shared memory, ACC(N) are its registers d. A
// thread holds N/2 of them. The operands after these are the descriptors of a and b. IN is their format: 1 for
// bf16, 3 for e4m3.
#pragma once

#if IN == 3
#define KIND "k32.f32.e4m3.e4m3"
#define SIGNS "p,1,1"
#else
#define KIND "k16.f32.bf16.bf16"
#define SIGNS "p,1,1,0,0"
#endif

#define CAT2(a, b) a##b
#define CAT(a, b) CAT2(a, b)
#define MMA(n) CAT(M, n)
#define ACC(n) CAT(F, n)

#define S8 "%0,%1,%2,%3"
#define F8(d) "+f"(d[0]),"+f"(d[1]),"+f"(d[2]),"+f"(d[3])
#define M8 "{ .reg .pred p; setp.eq.u32 p,0,0; wgmma.mma_async.sync.aligned.m64n8" KIND " {" S8 "},%4,%5," SIGNS "; }"
#define S16 S8 ",%4,%5,%6,%7"
#define F16(d) F8(d),"+f"(d[4]),"+f"(d[5]),"+f"(d[6]),"+f"(d[7])
#define M16 "{ .reg .pred p; setp.eq.u32 p,0,0; wgmma.mma_async.sync.aligned.m64n16" KIND " {" S16 "},%8,%9," SIGNS "; }"
#define S24 S16 ",%8,%9,%10,%11"
#define F24(d) F16(d),"+f"(d[8]),"+f"(d[9]),"+f"(d[10]),"+f"(d[11])
#define M24 "{ .reg .pred p; setp.eq.u32 p,0,0; wgmma.mma_async.sync.aligned.m64n24" KIND " {" S24 "},%12,%13," SIGNS "; }"
#define S32 S24 ",%12,%13,%14,%15"
#define F32(d) F24(d),"+f"(d[12]),"+f"(d[13]),"+f"(d[14]),"+f"(d[15])
#define M32 "{ .reg .pred p; setp.eq.u32 p,0,0; wgmma.mma_async.sync.aligned.m64n32" KIND " {" S32 "},%16,%17," SIGNS "; }"
#define S40 S32 ",%16,%17,%18,%19"
#define F40(d) F32(d),"+f"(d[16]),"+f"(d[17]),"+f"(d[18]),"+f"(d[19])
#define M40 "{ .reg .pred p; setp.eq.u32 p,0,0; wgmma.mma_async.sync.aligned.m64n40" KIND " {" S40 "},%20,%21," SIGNS "; }"
#define S48 S40 ",%20,%21,%22,%23"
#define F48(d) F40(d),"+f"(d[20]),"+f"(d[21]),"+f"(d[22]),"+f"(d[23])
#define M48 "{ .reg .pred p; setp.eq.u32 p,0,0; wgmma.mma_async.sync.aligned.m64n48" KIND " {" S48 "},%24,%25," SIGNS "; }"
#define S56 S48 ",%24,%25,%26,%27"
#define F56(d) F48(d),"+f"(d[24]),"+f"(d[25]),"+f"(d[26]),"+f"(d[27])
#define M56 "{ .reg .pred p; setp.eq.u32 p,0,0; wgmma.mma_async.sync.aligned.m64n56" KIND " {" S56 "},%28,%29," SIGNS "; }"
#define S64 S56 ",%28,%29,%30,%31"
#define F64(d) F56(d),"+f"(d[28]),"+f"(d[29]),"+f"(d[30]),"+f"(d[31])
#define M64 "{ .reg .pred p; setp.eq.u32 p,0,0; wgmma.mma_async.sync.aligned.m64n64" KIND " {" S64 "},%32,%33," SIGNS "; }"
#define S72 S64 ",%32,%33,%34,%35"
#define F72(d) F64(d),"+f"(d[32]),"+f"(d[33]),"+f"(d[34]),"+f"(d[35])
#define M72 "{ .reg .pred p; setp.eq.u32 p,0,0; wgmma.mma_async.sync.aligned.m64n72" KIND " {" S72 "},%36,%37," SIGNS "; }"
#define S80 S72 ",%36,%37,%38,%39"
#define F80(d) F72(d),"+f"(d[36]),"+f"(d[37]),"+f"(d[38]),"+f"(d[39])
#define M80 "{ .reg .pred p; setp.eq.u32 p,0,0; wgmma.mma_async.sync.aligned.m64n80" KIND " {" S80 "},%40,%41," SIGNS "; }"
#define S88 S80 ",%40,%41,%42,%43"
#define F88(d) F80(d),"+f"(d[40]),"+f"(d[41]),"+f"(d[42]),"+f"(d[43])
#define M88 "{ .reg .pred p; setp.eq.u32 p,0,0; wgmma.mma_async.sync.aligned.m64n88" KIND " {" S88 "},%44,%45," SIGNS "; }"
#define S96 S88 ",%44,%45,%46,%47"
#define F96(d) F88(d),"+f"(d[44]),"+f"(d[45]),"+f"(d[46]),"+f"(d[47])
#define M96 "{ .reg .pred p; setp.eq.u32 p,0,0; wgmma.mma_async.sync.aligned.m64n96" KIND " {" S96 "},%48,%49," SIGNS "; }"
#define S104 S96 ",%48,%49,%50,%51"
#define F104(d) F96(d),"+f"(d[48]),"+f"(d[49]),"+f"(d[50]),"+f"(d[51])
#define M104 "{ .reg .pred p; setp.eq.u32 p,0,0; wgmma.mma_async.sync.aligned.m64n104" KIND " {" S104 "},%52,%53," SIGNS "; }"
#define S112 S104 ",%52,%53,%54,%55"
#define F112(d) F104(d),"+f"(d[52]),"+f"(d[53]),"+f"(d[54]),"+f"(d[55])
#define M112 "{ .reg .pred p; setp.eq.u32 p,0,0; wgmma.mma_async.sync.aligned.m64n112" KIND " {" S112 "},%56,%57," SIGNS "; }"
#define S120 S112 ",%56,%57,%58,%59"
#define F120(d) F112(d),"+f"(d[56]),"+f"(d[57]),"+f"(d[58]),"+f"(d[59])
#define M120 "{ .reg .pred p; setp.eq.u32 p,0,0; wgmma.mma_async.sync.aligned.m64n120" KIND " {" S120 "},%60,%61," SIGNS "; }"
#define S128 S120 ",%60,%61,%62,%63"
#define F128(d) F120(d),"+f"(d[60]),"+f"(d[61]),"+f"(d[62]),"+f"(d[63])
#define M128 "{ .reg .pred p; setp.eq.u32 p,0,0; wgmma.mma_async.sync.aligned.m64n128" KIND " {" S128 "},%64,%65," SIGNS "; }"
#define S136 S128 ",%64,%65,%66,%67"
#define F136(d) F128(d),"+f"(d[64]),"+f"(d[65]),"+f"(d[66]),"+f"(d[67])
#define M136 "{ .reg .pred p; setp.eq.u32 p,0,0; wgmma.mma_async.sync.aligned.m64n136" KIND " {" S136 "},%68,%69," SIGNS "; }"
#define S144 S136 ",%68,%69,%70,%71"
#define F144(d) F136(d),"+f"(d[68]),"+f"(d[69]),"+f"(d[70]),"+f"(d[71])
#define M144 "{ .reg .pred p; setp.eq.u32 p,0,0; wgmma.mma_async.sync.aligned.m64n144" KIND " {" S144 "},%72,%73," SIGNS "; }"
#define S152 S144 ",%72,%73,%74,%75"
#define F152(d) F144(d),"+f"(d[72]),"+f"(d[73]),"+f"(d[74]),"+f"(d[75])
#define M152 "{ .reg .pred p; setp.eq.u32 p,0,0; wgmma.mma_async.sync.aligned.m64n152" KIND " {" S152 "},%76,%77," SIGNS "; }"
#define S160 S152 ",%76,%77,%78,%79"
#define F160(d) F152(d),"+f"(d[76]),"+f"(d[77]),"+f"(d[78]),"+f"(d[79])
#define M160 "{ .reg .pred p; setp.eq.u32 p,0,0; wgmma.mma_async.sync.aligned.m64n160" KIND " {" S160 "},%80,%81," SIGNS "; }"
#define S168 S160 ",%80,%81,%82,%83"
#define F168(d) F160(d),"+f"(d[80]),"+f"(d[81]),"+f"(d[82]),"+f"(d[83])
#define M168 "{ .reg .pred p; setp.eq.u32 p,0,0; wgmma.mma_async.sync.aligned.m64n168" KIND " {" S168 "},%84,%85," SIGNS "; }"
#define S176 S168 ",%84,%85,%86,%87"
#define F176(d) F168(d),"+f"(d[84]),"+f"(d[85]),"+f"(d[86]),"+f"(d[87])
#define M176 "{ .reg .pred p; setp.eq.u32 p,0,0; wgmma.mma_async.sync.aligned.m64n176" KIND " {" S176 "},%88,%89," SIGNS "; }"
#define S184 S176 ",%88,%89,%90,%91"
#define F184(d) F176(d),"+f"(d[88]),"+f"(d[89]),"+f"(d[90]),"+f"(d[91])
#define M184 "{ .reg .pred p; setp.eq.u32 p,0,0; wgmma.mma_async.sync.aligned.m64n184" KIND " {" S184 "},%92,%93," SIGNS "; }"
#define S192 S184 ",%92,%93,%94,%95"
#define F192(d) F184(d),"+f"(d[92]),"+f"(d[93]),"+f"(d[94]),"+f"(d[95])
#define M192 "{ .reg .pred p; setp.eq.u32 p,0,0; wgmma.mma_async.sync.aligned.m64n192" KIND " {" S192 "},%96,%97," SIGNS "; }"
#define S200 S192 ",%96,%97,%98,%99"
#define F200(d) F192(d),"+f"(d[96]),"+f"(d[97]),"+f"(d[98]),"+f"(d[99])
#define M200 "{ .reg .pred p; setp.eq.u32 p,0,0; wgmma.mma_async.sync.aligned.m64n200" KIND " {" S200 "},%100,%101," SIGNS "; }"
#define S208 S200 ",%100,%101,%102,%103"
#define F208(d) F200(d),"+f"(d[100]),"+f"(d[101]),"+f"(d[102]),"+f"(d[103])
#define M208 "{ .reg .pred p; setp.eq.u32 p,0,0; wgmma.mma_async.sync.aligned.m64n208" KIND " {" S208 "},%104,%105," SIGNS "; }"
#define S216 S208 ",%104,%105,%106,%107"
#define F216(d) F208(d),"+f"(d[104]),"+f"(d[105]),"+f"(d[106]),"+f"(d[107])
#define M216 "{ .reg .pred p; setp.eq.u32 p,0,0; wgmma.mma_async.sync.aligned.m64n216" KIND " {" S216 "},%108,%109," SIGNS "; }"
#define S224 S216 ",%108,%109,%110,%111"
#define F224(d) F216(d),"+f"(d[108]),"+f"(d[109]),"+f"(d[110]),"+f"(d[111])
#define M224 "{ .reg .pred p; setp.eq.u32 p,0,0; wgmma.mma_async.sync.aligned.m64n224" KIND " {" S224 "},%112,%113," SIGNS "; }"
#define S232 S224 ",%112,%113,%114,%115"
#define F232(d) F224(d),"+f"(d[112]),"+f"(d[113]),"+f"(d[114]),"+f"(d[115])
#define M232 "{ .reg .pred p; setp.eq.u32 p,0,0; wgmma.mma_async.sync.aligned.m64n232" KIND " {" S232 "},%116,%117," SIGNS "; }"
#define S240 S232 ",%116,%117,%118,%119"
#define F240(d) F232(d),"+f"(d[116]),"+f"(d[117]),"+f"(d[118]),"+f"(d[119])
#define M240 "{ .reg .pred p; setp.eq.u32 p,0,0; wgmma.mma_async.sync.aligned.m64n240" KIND " {" S240 "},%120,%121," SIGNS "; }"
#define S248 S240 ",%120,%121,%122,%123"
#define F248(d) F240(d),"+f"(d[120]),"+f"(d[121]),"+f"(d[122]),"+f"(d[123])
#define M248 "{ .reg .pred p; setp.eq.u32 p,0,0; wgmma.mma_async.sync.aligned.m64n248" KIND " {" S248 "},%124,%125," SIGNS "; }"
#define S256 S248 ",%124,%125,%126,%127"
#define F256(d) F248(d),"+f"(d[124]),"+f"(d[125]),"+f"(d[126]),"+f"(d[127])
#define M256 "{ .reg .pred p; setp.eq.u32 p,0,0; wgmma.mma_async.sync.aligned.m64n256" KIND " {" S256 "},%128,%129," SIGNS "; }"
