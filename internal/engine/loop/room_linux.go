package loop

import "github.com/myriad-go/myriad/internal/sock"

// withDescriptors is for how many of n connections, whose places are promised, there are
// descriptors. It gives the places of the others back: who sends more loses them.
func (t *takeover) withDescriptors(n int) int {
	l := t.loop
	claimed := l.group.admission.Promised()
	if l.group.cfg.Shard > 0 { // of this table
		claimed = n
		for _, in := range t.inlets {
			claimed += in.credit
		}
	}
	short := min(sock.DescriptorsShort(claimed), n)
	l.group.admission.Unpromise(short)
	return n - short
}
