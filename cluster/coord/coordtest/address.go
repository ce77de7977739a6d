package coordtest

import (
	"fmt"
	"math/rand/v2"
	"runtime"
)

// Address returns an address for a server that stops and comes back: nobody else takes its port meanwhile. On Linux all
// of 127.0.0.0/8 is this machine, and outgoing connections and other servers use ports of 127.0.0.1.
func Address() string {
	if runtime.GOOS != "linux" {
		return "127.0.0.1:0"
	}
	return fmt.Sprintf("127.%d.%d.%d:0", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254))
}
