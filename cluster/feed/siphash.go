package feed

import (
	"encoding/binary"
	"math/bits"

	"grebe/plan"
)

// sipHash is SipHash-2-4 of a key's 32 bytes.
func sipHash(secret *Secret, key *plan.Key) uint64 {
	k0, k1 := binary.LittleEndian.Uint64(secret[:]), binary.LittleEndian.Uint64(secret[8:])
	v := sipState{k0 ^ 0x736f6d6570736575, k1 ^ 0x646f72616e646f6d, k0 ^ 0x6c7967656e657261, k1 ^ 0x7465646279746573}
	for i := 0; i < len(key); i += 8 {
		v.add(binary.LittleEndian.Uint64(key[i:]))
	}
	v.add(uint64(len(key)) << 56)
	return v.sum()
}

type sipState struct{ a, b, c, d uint64 }

func (v *sipState) add(m uint64) {
	v.d ^= m
	v.round()
	v.round()
	v.a ^= m
}

func (v *sipState) sum() uint64 {
	v.c ^= 0xff
	for range 4 {
		v.round()
	}
	return v.a ^ v.b ^ v.c ^ v.d
}

func (v *sipState) round() {
	v.a += v.b
	v.b = bits.RotateLeft64(v.b, 13) ^ v.a
	v.a = bits.RotateLeft64(v.a, 32)
	v.c += v.d
	v.d = bits.RotateLeft64(v.d, 16) ^ v.c
	v.a += v.d
	v.d = bits.RotateLeft64(v.d, 21) ^ v.a
	v.c += v.b
	v.b = bits.RotateLeft64(v.b, 17) ^ v.c
	v.c = bits.RotateLeft64(v.c, 32)
}
