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

// countLostIfSlowThenUnsubscribe ends the subscriptions of a client whose connection has closed. If the connection was
// closed because the client was slow, the unsent output counts as lost.
func (h *Hub) countLostIfSlowThenUnsubscribe(conn *tcp.Conn, closeReason error) {
	holder, ok := conn.Value().(clientHolder)
	if !ok {
		return
	}
	c := holder.hubClient()
	slow := errors.Is(closeReason, tcp.ErrSlowConsumer) || errors.Is(closeReason, tcp.ErrWriteTimeout) || errors.Is(closeReason, tcp.ErrOverBudget)
	if n := int64(conn.Pending()); slow && n > 0 && c.subscriptionCount() > 0 {
		h.lostBytes.Add(n)
		if bytes := h.deliveredBytes.Load(); bytes > 0 {
			h.lost.Add(int64(math.Round(float64(n) / float64(bytes) * float64(h.delivered.Load()))))
		}
	}
	h.unsubscribeAllAndStopReplay(c, conn.Ref())
}

// ErrBusy is the error of Hub.Slow while another call of Hub.Slow is in progress.
var ErrBusy = errors.New("hub: another scan for slow subscribers is running; try again later")

// Slow describes the slow subscribers that Hub.Slow has found.
type Slow struct {
	// Clients is the number of clients with subscriptions. Waiting counts clients with unsent output. Behind counts
	// clients with so much unsent output that the server does not read from them (see tcp.Limits.HighWater). Missed
	// counts clients that have lost messages under the SlowConsumer policy DropMessage. Bytes is the total unsent
	// output.
	Clients, Waiting, Behind, Missed int
	Bytes                            int64
	// Top lists at most ten clients, starting with the most unsent output. Clients with equal unsent output are ordered
	// by their numbers of lost messages.
	Top []SlowClient
}

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

// Slow finds slow subscribers among the connections of srv. It examines every connection on the connection's event
// loop. A million connections take a few hundred milliseconds of processor time. It returns the errors of
// tcp.Server.Each, or ErrBusy if another call is in progress.
func (h *Hub) Slow(ctx context.Context, srv *tcp.Server) (Slow, error) {
	if !h.slowScanMu.TryLock() {
		return Slow{}, ErrBusy
	}
	defer h.slowScanMu.Unlock()
	var s Slow
	hasSubscriptions := func(c *tcp.Conn) bool {
		v, ok := c.Value().(clientHolder)
		return ok && v.hubClient().subscriptionCount() > 0
	}
	err := eachConnSerially(ctx, srv, hasSubscriptions, func(c *tcp.Conn) {
		s.countClientAndInsertIfAmongSlowest(c, c.Value().(clientHolder).hubClient())
	})
	return s, err
}

// eachConnSerially calls f for each connection for which matches returns true. Each call of f runs on the connection's
// event loop, but only one call runs at a time.
func eachConnSerially(ctx context.Context, srv *tcp.Server, matches func(*tcp.Conn) bool, f func(*tcp.Conn)) error {
	var mu sync.Mutex
	ended := false
	err := srv.Each(ctx, func(c *tcp.Conn) {
		if !matches(c) {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		if !ended { // after an error, calls may still arrive
			f(c)
		}
	})
	mu.Lock()
	defer mu.Unlock()
	ended = true
	return err
}

const operatorScanTimeout = 10 * time.Second

// StatsAndSlowPage returns a handler that responds with JSON for operators. The response contains the hub's Stats and
// the result of Slow for srv. The handler does not authenticate requests. Serve it through admin.Config.Pages.
func (h *Hub) StatsAndSlowPage(srv *tcp.Server) http.Handler {
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

func (s *Slow) countClientAndInsertIfAmongSlowest(conn *tcp.Conn, client *client) {
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
