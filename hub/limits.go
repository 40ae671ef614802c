package hub

import (
	"cmp"
	"fmt"
	"math"
	"time"

	"github.com/myriad-go/myriad/tcp"
)

// Limits bound the resources of a Hub that clients may use. For connections and slow subscribers, see tcp.Limits and
// tcp.Server.SlowConsumer. A zero field means its default. Negative values are errors.
type Limits struct {
	// MaxMessage limits a message in bytes. The default is 64 KiB, the maximum 1 GiB. The server's
	// tcp.Limits.MaxMessage also limits messages in the Redis protocol. A message whose encoded form exceeds MaxUnsent
	// is not delivered.
	MaxMessage int
	// MaxTopics limits the number of topics with subscribers. The same limit applies separately to patterns. The
	// default is 10,000,000.
	MaxTopics int
	// MaxName limits the length in bytes of a topic's name or a pattern. The default is 1,024, the maximum 65,536.
	MaxName int
	// MaxSubscriptions limits the topics and patterns of one client. The default is 100,000.
	MaxSubscriptions int
	// MaxSubscribers limits the subscribers of one topic or pattern. The default is 0: unlimited.
	MaxSubscribers int
	// MaxPatternWork limits the work of matching one publish against the patterns of all clients, in units of about 10
	// ns. The work is that of the most expensive name of MaxName bytes. Only patterns that no literal part rules out
	// count. The default is 100,000, about 1 ms.
	MaxPatternWork int
	// MaxPatternCost limits the cost of one client's patterns. A pattern costs the work that it adds to
	// MaxPatternWork, usually none, plus 1 for every 64 bytes of its compiled form. All clients of an address together
	// may use twice as much, but no more than the unused part of MaxPatternWork. A few addresses therefore cannot use
	// up MaxPatternWork. The default is 25,000.
	MaxPatternCost int
	// MaxFailedLogins limits successive failed logins of a connection. The default is 10, the maximum 200. An address
	// or IPv6 /64 network may fail ten times as often per minute. Beyond these limits, a connection of the Redis
	// protocol closes after a second, any other connection immediately. A correct password is always accepted.
	MaxFailedLogins int
	// PublishRate limits the messages per second that a client publishes. Bursts may be as large as one second's
	// messages; further messages are rejected. For HTTP requests, the limit applies to an address or IPv6 /64 network.
	// The default is 0: unlimited. The maximum is 1,000,000,000.
	PublishRate int
	// LastValues limits the number of topics whose newest message is kept for later subscribers. The default is 0:
	// none. LastValueBytes limits their memory: allocated names and messages, and 104 bytes per topic. The default is
	// 64 MiB. Before garbage collection (GOGC), the process may use twice as much. Beyond a limit, the least recently
	// published or subscribed topics are evicted.
	LastValues, LastValueBytes int
}

func (l Limits) maxMessage() int       { return cmp.Or(l.MaxMessage, 64<<10) }
func (l Limits) maxTopics() int        { return cmp.Or(l.MaxTopics, 10_000_000) }
func (l Limits) maxName() int          { return cmp.Or(l.MaxName, 1024) }
func (l Limits) maxSubscriptions() int { return cmp.Or(l.MaxSubscriptions, 100_000) }
func (l Limits) maxFailedLogins() int  { return cmp.Or(l.MaxFailedLogins, 10) }
func (l Limits) maxPatternWork() int   { return cmp.Or(l.MaxPatternWork, 100_000) }
func (l Limits) maxPatternCost() int   { return cmp.Or(l.MaxPatternCost, 25_000) }
func (l Limits) lastValueBytes() int   { return cmp.Or(l.LastValueBytes, 64<<20) }

// maxFailedLoginsLimit is the maximum of Limits.MaxFailedLogins.
const maxFailedLoginsLimit = 200

// configError wraps tcp.ErrBadConfig without showing its text.
type configError struct{ error }

func (configError) Unwrap() error { return tcp.ErrBadConfig }

func (l Limits) validate() error {
	for _, n := range []struct {
		name       string
		value, max int
	}{
		{"MaxMessage", l.MaxMessage, 1 << 30},
		{"MaxTopics", l.MaxTopics, math.MaxInt32},
		{"MaxName", l.MaxName, 64 << 10},
		{"MaxSubscriptions", l.MaxSubscriptions, math.MaxInt32},
		{"MaxSubscribers", l.MaxSubscribers, math.MaxInt32},
		{"MaxPatternWork", l.MaxPatternWork, math.MaxInt32},
		{"MaxPatternCost", l.MaxPatternCost, math.MaxInt32},
		{"MaxFailedLogins", l.MaxFailedLogins, maxFailedLoginsLimit},
		{"PublishRate", l.PublishRate, int(time.Second)},
		{"LastValues", l.LastValues, math.MaxInt32},
		{"LastValueBytes", l.LastValueBytes, math.MaxInt},
	} {
		if n.value < 0 || n.value > n.max {
			return configError{fmt.Errorf("hub: Limits.%s is %d; expected 0 (the default) to %d", n.name, n.value, n.max)}
		}
	}
	if l.LastValueBytes > 0 && l.LastValues == 0 {
		return configError{fmt.Errorf("hub: Limits.LastValueBytes is %d without Limits.LastValues; expected both", l.LastValueBytes)}
	}
	return nil
}
