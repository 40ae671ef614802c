package loop

import (
	"slices"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// This file is how mail gets to its connections. The loop takes all that waits in the
// mailbox and goes through it connection by connection: all mail for one goes out in
// one send, and few connections hold an output buffer at a time. It does so for a slice
// of a turn; meanwhile mail gathers in the mailbox, within its bounds, and is taken
// when the loop is through. The mail is the loop's alone then.

const (
	// mailSort is the most mail that is ordered by connection at a time, which takes
	// about a millisecond.
	mailSort = 64 << 10
	// mailBatch is the most connections that a turn gives mail.
	mailBatch = 256
	// mailLook is how much mail a connection gets without a look at the clock.
	mailLook = 32
	// keepLetters is the most room for them that is kept.
	keepLetters = 1 << 10
)

// letter is the place of a piece of mail.
type letter struct {
	slot  uint32 // whose it is
	index uint32 // in the mail
	at    int    // where its bytes lie
}

// post is mail that has been taken.
type post struct {
	mail    []engine.Mail
	data    []byte
	sorted  int      // so much of the mail has been ordered,
	at      int      // with so much of the data
	letters []letter // that, but for what has been given out
	room    [2][]letter
}

// left says whether there is mail to give out.
func (p *post) left() bool { return len(p.letters) > 0 || p.sorted < len(p.mail) }

// sort orders some more mail by connection, and for each as it came.
func (p *post) sort() {
	n := min(len(p.mail)-p.sorted, mailSort)
	letters, other := slices.Grow(p.room[0][:0], n), slices.Grow(p.room[1][:0], n)[:n]
	most, ordered := uint32(0), true
	for ; n > 0; n-- {
		m := &p.mail[p.sorted]
		slot := m.Conn.Slot()
		ordered = ordered && slot >= most
		most = max(most, slot)
		letters = append(letters, letter{slot, uint32(p.sorted), p.at})
		p.at += int(m.Size)
		p.sorted++
	}
	p.room = [2][]letter{letters, other}
	if !ordered {
		letters = bySlot(letters, other, most)
	}
	p.letters = letters
}

// bySlot is a radix sort by slots up to most. It uses the room of both.
func bySlot(from, to []letter, most uint32) []letter {
	for shift := 0; most>>shift > 0; shift += 8 {
		var at [257]int
		for i := range from {
			at[from[i].slot>>shift&0xff+1]++
		}
		for i := range at[1:] {
			at[i+1] += at[i]
		}
		for _, l := range from {
			next := &at[l.slot>>shift&0xff]
			to[*next] = l
			*next++
		}
		from, to = to, from
	}
	return from
}

// takeMail gives mail to its connections, and settles each after its own, until the
// slice is over.
func (l *Loop) takeMail() {
	p := &l.post
	if !p.left() {
		p.mail, p.data = l.box.Take()
	}
	end := engine.Since() + slice
	for n := 0; p.left() && n < mailBatch; n++ {
		if len(p.letters) == 0 {
			p.sort()
		}
		c := p.mail[p.letters[0].index].Conn
		over := l.deliverTo(c, end)
		if c.FD() >= 0 && c.Armed()&Busy == 0 && c.IsOpen() {
			l.driver.Settle(c)
		}
		if over || engine.Since() >= end {
			break
		}
	}
	if !p.left() {
		l.box.Done(p.mail, p.data)
		if room := p.room; cap(room[0]) <= keepLetters {
			*p = post{room: room}
		} else {
			*p = post{}
		}
	}
}

// deliverTo gives a connection the mail that is next, up to a time. It says whether
// that has come.
func (l *Loop) deliverTo(c *engine.Conn, end time.Duration) (over bool) {
	p := &l.post
	for n := 1; len(p.letters) > 0 && p.letters[0].slot == c.Slot(); n++ {
		next := p.letters[0]
		p.letters = p.letters[1:]
		m := p.mail[next.index]
		l.deliver(m, p.data[next.at:next.at+int(m.Size)])
		if n%mailLook == 0 && engine.Since() >= end {
			return true
		}
	}
	return false
}

// deliver gives a connection its mail, now or when it is back.
func (l *Loop) deliver(m engine.Mail, data []byte) {
	if m.Conn.Armed()&Busy == 0 || m.Late() {
		m.Conn.Mailed(m, data)
		return
	}
	l.mailLater(m, data)
}
