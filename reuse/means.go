package reuse

import "sync"

// Means are the mean sizes of the last rankings. The zero value means that there was none.
type Means struct {
	User       float64 // tokens
	Candidates float64
	Item       float64 // tokens of a candidate
}

// meansOver is about how many rankings the means are of.
const meansOver = 64

type means struct {
	mu    sync.Mutex
	count int
	now   Means
}

// note adds a ranking that has candidates.
func (m *means) note(user, candidates, tokens int) {
	if candidates == 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.count = min(m.count+1, meansOver)
	w := 1 / float64(m.count)
	m.now.User += w * (float64(user) - m.now.User)
	m.now.Candidates += w * (float64(candidates) - m.now.Candidates)
	m.now.Item += w * (float64(tokens)/float64(candidates) - m.now.Item)
}

// Means returns the mean sizes of the last rankings.
func (c *Cache) Means() Means {
	c.means.mu.Lock()
	defer c.means.mu.Unlock()
	return c.means.now
}
