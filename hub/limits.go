package hub

import (
	"cmp"
	"fmt"
	"math"
	"time"

	"github.com/myriad-go/myriad/tcp"
)

// Limits bound what clients may use of a Hub. tcp.Limits and tcp.Server.SlowConsumer bound connections and slow
// subscribers. Zero fields mean their defaults; negative values are errors.
type Limits struct {
	// MaxMessage limits a message in bytes. A message of the Redis protocol is also limited by the server's
	// tcp.Limits.MaxMessage, and a message whose encoded form exceeds MaxUnsent is not delivered. The default is
	// 64 KiB, the maximum 1 GiB.
	MaxMessage int
	// MaxTopics limits topics with subscribers, and separately patterns. The default is 10,000,000.
	MaxTopics int
	// MaxName limits the name of a topic or pattern in bytes. The default is 1,024, the maximum 65,536.
	MaxName int
	// MaxSubscriptions limits the topics and patterns of one client. The default is 100,000.
	MaxSubscriptions int
	// MaxSubscribers limits the subscribers of one topic or pattern. The default is 0: unlimited.
	MaxSubscribers int
	// MaxPatternWork limits the work of one publish with the patterns of all clients, in units of about 10 ns. It
	// counts, for the most expensive name of MaxName bytes, the patterns that must be tried because no literal
	// part distinguishes them. The default is 100,000, about 1 ms.
	MaxPatternWork int
	// MaxPatternCost limits the cost of one client's patterns. A pattern costs the work that it adds to
	// MaxPatternWork, usually none, and 1 for every 64 bytes of its compiled form. All clients of an address
	// together may use twice as much, but not more than is free of MaxPatternWork, so that a few addresses cannot
	// use it up. The default is 25,000.
	MaxPatternCost int
	// MaxFailedLogins limits successive failed logins of a connection. Ten times as many are allowed in a minute
	// for one address or IPv6 /64 network. Beyond that, connections close: those of the Redis protocol after a
	// second, others immediately. A correct password is always accepted. The default is 10, the maximum 200.
	MaxFailedLogins int
	// PublishRate limits the messages that a client publishes per second, with bursts of as many. Further ones
	// are rejected. For HTTP requests, the limit is per address or IPv6 /64 network. The default is 0: unlimited;
	// the maximum is 1,000,000,000.
	PublishRate int
	// LastValues limits the topics whose newest message is kept for later subscribers, and LastValueBytes their
	// memory: names and messages as allocated, and 104 bytes each. The process may take twice that until garbage
	// is collected (GOGC). Beyond a limit, the least recently published or subscribed topics are evicted. The
	// defaults are 0, which keeps none, and 64 MiB.
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
