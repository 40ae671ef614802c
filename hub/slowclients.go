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

// cleanUpClosedClient ends all subscriptions of a client whose connection has closed, and counts what it has lost.
func (h *Hub) cleanUpClosedClient(c *client, conn *tcp.Conn, reason error) {
	slow := errors.Is(reason, tcp.ErrSlowConsumer) || errors.Is(reason, tcp.ErrWriteTimeout) || errors.Is(reason, tcp.ErrOverBudget)
	if n := int64(conn.Pending()); slow && n > 0 && c.subscriptionCount() > 0 {
		h.lostBytes.Add(n)
		if bytes := h.deliveredBytes.Load(); bytes > 0 {
			h.lost.Add(int64(math.Round(float64(n) / float64(bytes) * float64(h.delivered.Load()))))
		}
	}
	h.unsubscribeAll(c, conn.Ref())
}

// ErrBusy is why Hub.Slow does not look: it does already.
var ErrBusy = errors.New("hub: somebody looks for slow subscribers already; expected one at a time")

// Slow is what Hub.Slow has found.
type Slow struct {
	// Clients is how many have subscriptions, Waiting how many of these have output that
	// waits, Behind how many so much that they are not read from (tcp.Limits.HighWater),
	// Missed how many have lost messages (SlowConsumer DropMessage), and Bytes what waits for
	// all of them.
	Clients, Waiting, Behind, Missed int
	Bytes                            int64
	// Top are the ten for whom most waits, and then those who have lost most.
	Top []SlowClient
}

// SlowClient is a subscriber that does not take what is sent to it.
type SlowClient struct {
	ID   uint64 // that of Ref.ID, and of CLIENT LIST
	Addr string // empty for a unix socket
	User string
	// Topic is one of its topics or patterns, of so many Subscriptions.
	Topic         string
	Subscriptions int
	// Pending is how many bytes wait for it, Dropped how many messages it has lost.
	Pending int
	Dropped int64
}

// maxSlowListed is how many are told of.
const maxSlowListed = 10

// Slow looks for the subscribers that do not take what is sent to them. It looks at every
// connection of srv, on its event loop, as Server.Each does, whose errors it has; with a
// million that takes a few hundred milliseconds of processor time. One look is under way at a
// time: further ones fail with ErrBusy.
func (h *Hub) Slow(ctx context.Context, srv *tcp.Server) (Slow, error) {
	if !h.slowScanMu.TryLock() {
		return Slow{}, ErrBusy
	}
	defer h.slowScanMu.Unlock()
	var mu sync.Mutex
	var s Slow
	ended := false // after an error, calls may still come
	err := srv.Each(ctx, func(c *tcp.Conn) {
		v, ok := c.Value().(clientHolder)
		if !ok || v.hubClient().subscriptionCount() == 0 {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		if !ended {
			s.addClient(c, v.hubClient())
		}
	})
	mu.Lock()
	defer mu.Unlock()
	ended = true
	return s, err
}

// operatorScanTimeout bounds a look of Operator.
const operatorScanTimeout = 10 * time.Second

// Operator shows, as JSON, what an operator of a hub that srv serves has to know: its Stats and
// what Slow finds, or the error. It asks nobody who they are: it is for admin.Config.Pages.
func (h *Hub) Operator(srv *tcp.Server) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), operatorScanTimeout)
		defer cancel()
		var shown struct {
			Stats Stats
			Slow  Slow
			Error string `json:",omitempty"` // why nobody, or not everybody, was looked at
		}
		var err error
		if shown.Slow, err = h.Slow(ctx, srv); err != nil {
			shown.Error = err.Error()
		}
		shown.Stats = h.Stats()
		w.Header().Set("Content-Type", "application/json")
		to := json.NewEncoder(w)
		to.SetIndent("", "  ")
		_ = to.Encode(shown) // the peer may have gone
	})
}

// addClient counts a subscriber.
func (s *Slow) addClient(conn *tcp.Conn, client *client) {
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
	at, _ := slices.BinarySearchFunc(s.Top, one, func(a, b SlowClient) int {
		return cmp.Or(cmp.Compare(b.Pending, a.Pending), cmp.Compare(b.Dropped, a.Dropped))
	})
	if at == maxSlowListed || pending == 0 && dropped == 0 {
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
	s.Top = slices.Insert(s.Top, at, one)
	s.Top = s.Top[:min(len(s.Top), maxSlowListed)]
}
