package hub

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/myriad-go/myriad/tcp"
)

// countLostIfSlowThenUnsubscribe ends the subscriptions of a closed client. If the client was closed for being slow,
// its unsent output is first counted as lost.
func (h *Hub) countLostIfSlowThenUnsubscribe(c *client, conn *tcp.Conn, closeReason error) {
	slow := errors.Is(closeReason, tcp.ErrSlowConsumer) || errors.Is(closeReason, tcp.ErrWriteTimeout) || errors.Is(closeReason, tcp.ErrOverBudget)
	if n := int64(conn.Pending()); slow && n > 0 && c.subscriptionCount() > 0 {
		h.lostBytes.Add(n)
		if bytes := h.deliveredBytes.Load(); bytes > 0 {
			h.lost.Add(int64(math.Round(float64(n) / float64(bytes) * float64(h.delivered.Load()))))
		}
	}
	h.unsubscribeAllAndStopReplay(c, conn.Ref())
}

// ErrBusy is the error of Hub.Slow while another scan runs.
var ErrBusy = errors.New("hub: another scan for slow subscribers is running; try again later")

// Slow is the result of Hub.Slow.
type Slow struct {
	// Clients is the number of clients with subscriptions. Waiting is the number of these clients with unsent output.
	// Behind is the number with more unsent output than tcp.Limits.HighWater. The server does not read from these
	// clients. Missed is the number that have lost messages under the SlowConsumer policy DropMessage. Bytes is the
	// total unsent output.
	Clients, Waiting, Behind, Missed int
	Bytes                            int64
	// Top lists the ten clients with the most unsent output. Of clients with equal output, those with more lost
	// messages come first.
	Top []SlowClient
}

// SlowClient is a subscriber with unsent output or lost messages.
type SlowClient struct {
	ID   uint64 // as in tcp.Ref.ID and CLIENT LIST
	Addr string // empty for a Unix socket
	User string
	// Topic is one of the client's topics or patterns.
	Topic         string
	Subscriptions int
	// Pending is the unsent output in bytes. Dropped is the number of lost messages.
	Pending int
	Dropped int64
}

const maxSlowListed = 10

// Slow finds slow subscribers. Like tcp.Server.Each, it examines every connection of srv on the connection's event
// loop, and returns the same errors as Each. A million connections take a few hundred milliseconds of processor time.
// Only one scan runs at a time. A concurrent scan fails with ErrBusy.
func (h *Hub) Slow(ctx context.Context, srv *tcp.Server) (Slow, error) {
	if !h.slowScanMu.TryLock() {
		return Slow{}, ErrBusy
	}
	defer h.slowScanMu.Unlock()
	var mu sync.Mutex
	var s Slow
	ended := false // after an error, calls may still arrive
	err := srv.Each(ctx, func(c *tcp.Conn) {
		v, ok := c.Value().(clientHolder)
		if !ok || v.hubClient().subscriptionCount() == 0 {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		if !ended {
			s.countAndRankClient(c, v.hubClient())
		}
	})
	mu.Lock()
	defer mu.Unlock()
	ended = true
	return s, err
}

const operatorScanTimeout = 10 * time.Second

// Operator returns a JSON page for operators. The page contains the hub's Stats and the result or error of Slow for
// srv. It does not authenticate requests. Serve it through admin.Config.Pages.
func (h *Hub) Operator(srv *tcp.Server) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), operatorScanTimeout)
		defer cancel()
		var shown struct {
			Stats Stats
			Slow  Slow
			Error string `json:",omitempty"` // of an incomplete scan
		}
		var err error
		if shown.Slow, err = h.Slow(ctx, srv); err != nil {
			shown.Error = err.Error()
		}
		shown.Stats = h.Stats()
		w.Header().Set("Content-Type", "application/json")
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		_ = encoder.Encode(shown) // fails if the peer has gone
	})
}

func (s *Slow) countAndRankClient(conn *tcp.Conn, client *client) {
	s.Clients++
	pending, dropped := conn.Pending(), conn.Dropped()
	s.Bytes += int64(pending)
	if pending > 0 {
		s.Waiting++
	}
	if conn.Paused() {
		s.Behind++
	}
	if dropped > 0 {
		s.Missed++
	}
	one := SlowClient{Pending: pending, Dropped: dropped}
	index, _ := slices.BinarySearchFunc(s.Top, one, func(a, b SlowClient) int {
		return cmp.Or(cmp.Compare(b.Pending, a.Pending), cmp.Compare(b.Dropped, a.Dropped))
	})
	if index == maxSlowListed || pending == 0 && dropped == 0 {
		return
	}
	one.ID, one.Subscriptions = conn.Ref().ID(), client.subscriptionCount()
	if addr, _ := conn.Ref().RemoteAddr(); addr.IsValid() {
		one.Addr = addr.String()
	}
	if client.user != nil {
		one.User = client.user.name
	}
	one.Topic = append(client.subscriptionNames(Topic), client.subscriptionNames(Pattern)...)[0]
	s.Top = slices.Insert(s.Top, index, one)
	s.Top = s.Top[:min(len(s.Top), maxSlowListed)]
}
