package faults

import (
	"container/heap"
	"math/rand/v2"
	"os"
	"sync"
	"time"
)

const (
	// maxFlying is how many packets are on the way in one direction at most.
	maxFlying = 8192
	// maxPacket is more than the largest packet, whose size is the interface's
	// default of 1,500 bytes.
	maxPacket = 2048
)

// linkEnds are the files through which the packets of both sides go.
type linkEnds struct {
	files   [2]*os.File
	carries sync.WaitGroup
}

// NewLink makes a link.
func NewLink(w Weather) (l *Link, err error) {
	l = &Link{}
	l.Set(w)
	defer func() {
		if err != nil {
			l.Close()
			l = nil
		}
	}()
	for i, end := range []struct {
		in **Namespace
		ip [4]byte
	}{{&l.Clients, ClientAddr.As4()}, {&l.Server, ServerAddr.As4()}} {
		if *end.in, err = NewNamespace(); err != nil {
			return l, err
		}
		err = (*end.in).Do(func() (err error) {
			l.ends.files[i], err = tunnel("myriad0", end.ip[:])
			return err
		})
		if err != nil {
			return l, err
		}
	}
	l.ends.carries.Go(func() { l.carry(l.ends.files[0], l.ends.files[1], 0) })
	l.ends.carries.Go(func() { l.carry(l.ends.files[1], l.ends.files[0], 1) })
	return l, nil
}

// Close takes the link down and waits for that.
func (l *Link) Close() {
	for _, f := range l.ends.files {
		if f != nil {
			f.Close()
		}
	}
	l.ends.carries.Wait()
	for _, n := range []*Namespace{l.Clients, l.Server} {
		if n != nil {
			n.Close()
		}
	}
}

// carry takes packets from one end to the other, until the ends are closed. It
// reads them; a goroutine that it starts and waits for writes them when they are
// due.
func (l *Link) carry(from, to *os.File, direction uint64) {
	way := make(chan packet, maxFlying)
	var delivery sync.WaitGroup
	delivery.Go(func() { l.deliver(way, to) })
	defer delivery.Wait()
	defer close(way)
	random := rand.New(rand.NewPCG(l.weather.Load().Seed, direction))
	buf := make([]byte, maxPacket)
	for number := int64(0); ; number++ {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		w := l.weather.Load()
		switch {
		case l.cut.Load():
			l.counts.cut.Add(1)
			continue
		case random.Float64() < w.Loss:
			l.counts.lost.Add(1)
			continue
		}
		due := time.Now().Add(w.Delay)
		if w.Jitter > 0 {
			due = due.Add(time.Duration(random.Int64N(int64(w.Jitter))))
		}
		select {
		case way <- packet{due, number, append([]byte(nil), buf[:n]...)}:
		default:
			l.counts.overflowed.Add(1)
		}
	}
}

// deliver writes packets when they are due.
func (l *Link) deliver(way <-chan packet, to *os.File) {
	var flying packets
	latest := int64(-1)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		for len(flying) > 0 && time.Until(flying[0].due) <= 0 {
			p := heap.Pop(&flying).(packet)
			if _, err := to.Write(p.bytes); err != nil {
				l.counts.overflowed.Add(1)
				continue
			}
			l.counts.passed.Add(1)
			if p.number < latest {
				l.counts.overtaken.Add(1)
			}
			latest = max(latest, p.number)
		}
		if len(flying) > 0 {
			timer.Reset(time.Until(flying[0].due))
		}
		select {
		case p, open := <-way:
			switch {
			case !open:
				return
			case len(flying) == maxFlying:
				l.counts.overflowed.Add(1)
			default:
				heap.Push(&flying, p)
			}
		case <-timer.C:
		}
	}
}

// packet is one on its way.
type packet struct {
	due    time.Time
	number int64
	bytes  []byte
}

// packets is a heap, the earliest first; those due at one time in their order.
type packets []packet

func (p packets) Len() int { return len(p) }

func (p packets) Less(i, j int) bool {
	if p[i].due.Equal(p[j].due) {
		return p[i].number < p[j].number
	}
	return p[i].due.Before(p[j].due)
}

func (p packets) Swap(i, j int) { p[i], p[j] = p[j], p[i] }

func (p *packets) Push(x any) { *p = append(*p, x.(packet)) }

func (p *packets) Pop() any {
	last := len(*p) - 1
	x := (*p)[last]
	(*p)[last] = packet{}
	*p = (*p)[:last]
	return x
}
