package residency

import "testing"

func TestHangs(t *testing.T) {
	if Hangs(0) || Hangs(HungAfter) || !Hangs(HungAfter+1) {
		t.Error("a tier hangs when a read takes more than HungAfter")
	}
}
