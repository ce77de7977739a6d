package app

import "testing"

// Few cores all compute. Of many cores, one is left to other work unless the configuration says otherwise.
func TestOneOfManyCoresIsLeftFree(t *testing.T) {
	for _, c := range []struct{ wanted, cores, threads int }{
		{0, 1, 1}, {0, 2, 2}, {0, 7, 7}, {0, 8, 7}, {0, 16, 15}, {16, 16, 16}, {3, 16, 3}, {4, 2, 4},
	} {
		if got := threadsFor(c.wanted, c.cores); got != c.threads {
			t.Errorf("threads %d on %d cores: %d, want %d", c.wanted, c.cores, got, c.threads)
		}
	}
}
