package hub

import (
	"cmp"
	"fmt"
	"math"
	"time"

	"github.com/myriad-go/myriad/tcp"
)

// Limits limits how much of a Hub's resources clients may use. tcp.Limits and tcp.Server.SlowConsumer limit connections
// and slow subscribers. Fields that are 0 have their defaults. Negative values are errors.
type Limits struct {
	// MaxMessage limits the size of a message in bytes. The default is 64 KiB, the maximum 1 GiB. In the Redis
	// protocol, the server's tcp.Limits.MaxMessage also applies. A message whose encoded form exceeds
	// tcp.Limits.MaxUnsent is not delivered.
	MaxMessage int
	// MaxTopics limits the number of topics that have subscribers. The same limit applies separately to sharded topics
	// and to patterns. The default is 10,000,000.
	MaxTopics int
	// MaxName limits the length of a topic name or a pattern in bytes. The default is 1,024, the maximum 65,536.
	MaxName int
	// MaxSubscriptions limits the topics and patterns that one client is subscribed to. The default is 100,000.
	MaxSubscriptions int
	// MaxSubscribers limits the number of subscribers of one topic or pattern. The default 0 means no limit.
	MaxSubscribers int
	// MaxPatternWork limits the work of matching one message against the patterns of all clients. The work depends on
	// the message's topic name. The limit applies to the work for the most expensive name of up to MaxName bytes. One
	// unit of work takes about 10 ns. The default is 100,000, about 1 ms.
	MaxPatternWork int
	// MaxPatternCost limits the total cost of one client's patterns. The cost of a pattern is the work that it adds to
	// a publish, in units of MaxPatternWork, plus 1 for every 64 bytes of its compiled form. Most patterns add no work.
	// SubscribedToAll clients of an IPv4 address or IPv6 /64 network together may use at most 2 * MaxPatternCost, and
	// at most the unused part of MaxPatternWork. The default is 25,000.
	MaxPatternCost int
	// MaxFailedLogins limits the number of consecutive failed logins on a connection. SubscribedToAll clients of an
	// IPv4 address or IPv6 /64 network together may fail 10 * MaxFailedLogins times per minute. A connection that
	// reaches one of these limits is closed. In the Redis protocol, the connection closes one second later. A correct
	// password is always accepted. The default is 10, the maximum 200.
	MaxFailedLogins int
	// PublishRate limits the number of messages that a client may publish per second. A client may publish all messages
	// of a second at once. Further messages are rejected. SubscribedToAll HTTP requests from an IPv4 address or IPv6
	// /64 network share one limit. The default 0 means no limit. The maximum is 1,000,000,000.
	PublishRate int
	// LastValues limits the number of topics whose newest message is stored for later subscribers. The default is 0:
	// none. LastValueBytes limits the memory of these messages: names and messages as allocated, plus 104 bytes per
	// topic. The default is 64 MiB. Garbage may double the memory that the process uses (see GOGC). If a limit is
	// exceeded, the topics that were least recently published or subscribed to are evicted.
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

const maxFailedLoginsLimit = 200

// configError is a configuration error that wraps tcp.ErrBadConfig.
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
		return configError{fmt.Errorf("hub: Limits.LastValueBytes is %d, but Limits.LastValues is not set; expected both or neither", l.LastValueBytes)}
	}
	return nil
}
