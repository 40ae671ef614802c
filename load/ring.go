package load

import "github.com/myriad-go/myriad/internal/engine"

// ring speaks messages of one size that lie in memory one behind the other.
type ring struct{ text text }

func newRing(cfg *Config) *ring {
	if cfg.Message != nil {
		return &ring{repeated(cfg.Message)}
	}
	return &ring{newText(cfg.Size, cfg.Seed)}
}

func (r *ring) longest() int { return r.text.size }

// start is the place of the first message of a connection.
func (r *ring) start(number uint32) int { return r.text.start(number) }

// place is the place of message number k.
func (r *ring) place(number uint32, k uint64) int {
	messages := uint64(len(r.text.block) / r.text.size)
	return r.text.after(r.start(number), int(k%messages)*r.text.size)
}

func (r *ring) append(dst []byte, number uint32, k uint64) []byte {
	return append(dst, r.text.run(r.place(number, k), r.text.size)...)
}

// send hands n messages to a connection, without copying them first.
func (r *ring) send(c *engine.Conn, number uint32, k uint64, n int) int {
	at := r.place(number, k)
	for left := n * r.text.size; left > 0; {
		p := r.text.run(at, left)
		if _, err := c.Write(p); err != nil {
			break // Closed tells why
		}
		left -= len(p)
		at = 0
	}
	return n * r.text.size
}

// heardRing expects answers that lie in memory one behind the other.
type heardRing struct {
	text  text
	start func(number uint32) int
}

// newHeardRing expects the one answer of a configuration.
func newHeardRing(cfg *Config) *heardRing {
	r := &heardRing{text: repeated(cfg.Answer)}
	r.text.free, r.text.freeEnd = cfg.free, cfg.freeEnd
	r.start = r.text.start
	return r
}

func (r *heardRing) begin(l *link) { l.at = uint32(r.start(l.number)) }

func (r *heardRing) check(_ *engine.Conn, l *link, in []byte, ahead int) (h heardOf) {
	owed := (int(l.flying)-ahead)*r.text.size - int(l.pos)
	good := r.text.match(int(l.at), in[:min(len(in), owed)])
	l.at = uint32(r.text.after(int(l.at), good))
	pos := int(l.pos) + good
	for ; pos >= r.text.size; pos -= r.text.size {
		h.answers++
	}
	l.pos = uint32(pos)
	h.used, h.bytes = good, good
	if good < len(in) {
		h.wrong = errWrong
	}
	return h
}

func (r *heardRing) expects(l *link) []byte {
	if l.flying == 0 {
		return nil
	}
	return r.text.run(int(l.at), r.text.size-int(l.pos))
}
