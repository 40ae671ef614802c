package doctor

import (
	"fmt"
	"strconv"

	"github.com/myriad-go/myriad/internal/format"
)

// This file has the walls of the firewall's memory of connections. A connection
// over loopback is one entry, for both its ends.

const (
	trackMaxName     = "net.netfilter.nf_conntrack_max"
	trackBucketsName = "net.netfilter.nf_conntrack_buckets"
	trackCountName   = "net.netfilter.nf_conntrack_count"
	trackWaitName    = "net.netfilter.nf_conntrack_tcp_timeout_time_wait"

	trackPage = "https://docs.kernel.org/networking/nf_conntrack-sysctl.html"

	// trackWait is for how many seconds an entry outlives an orderly close
	// where nf_conntrack_tcp_timeout_time_wait can't be read.
	trackWait = 120
	// longChain is from how many entries in a bucket on looking one up is slow.
	// Each connection is in two buckets, once for each direction.
	longChain = 8
)

// tracking reports whether connections are tracked here.
func (x *exam) tracking() bool { return x.f.Sockets.Tracking || x.f.Sockets.Tracked > 0 }

var _ = wall((*exam).conntrack,
	setting{name: trackMaxName, amount: true, least: "1024"},
	setting{name: trackWaitName},
	setting{name: trackCountName})

// conntrack is the table's size.
func (x *exam) conntrack() *Wall {
	limit, ok := x.number(trackMaxName)
	if !ok {
		return nil
	}
	w := &Wall{
		Name: "conntrack", What: "connections that the firewall can follow (" + trackMaxName + ")",
		Present: fmt.Sprintf("%s, %s now", format.Count(limit), format.Count(x.f.Sockets.Tracked)), Holds: Unlimited,
		Effect: "SYNs are dropped (\"nf_conntrack: table full, dropping packet\" in the kernel's log, drop in /proc/net/stat/nf_conntrack): " +
			"clients fail with ETIMEDOUT",
		Source: trackPage,
		Used:   x.f.Sockets.Tracked, Limit: limit, Unit: "connections", Beyond: true,
	}
	if !x.tracking() {
		w.Present = format.Count(limit) + ", no rule asks for it"
		return w
	}
	seconds, ok := x.number(trackWaitName)
	if !ok {
		seconds = trackWait
	}
	w.Holds = x.withClosing(satSub(limit, x.f.Sockets.Tracked), seconds)
	if x.near(w) {
		need := satAdd(satAdd(int64(x.p.Connections), satMul(int64(x.p.Closing), seconds)), x.f.Sockets.Tracked)
		w.Needs = format.Count(need)
		w.Changes = []Change{x.sysctl(trackMaxName, strconv.FormatInt(withHeadroom(need), 10))}
	}
	return w
}

var _ = wall((*exam).conntrackBuckets, setting{name: trackBucketsName, amount: true, least: "1024"})

// conntrackBuckets is how well the table is spread.
func (x *exam) conntrackBuckets() *Wall {
	buckets, ok := x.number(trackBucketsName)
	if !ok || !x.tracking() {
		return nil
	}
	w := &Wall{
		Name: "conntrack-buckets", Soft: true, What: "buckets of the firewall's table (" + trackBucketsName + ")",
		Present: format.Count(buckets), Holds: satSub(satMul(buckets, longChain)/2, x.f.Sockets.Tracked),
		Effect: "looking up each packet's connection takes longer: more than 8 are in a bucket",
		Source: trackPage, Beyond: true,
	}
	if x.near(w) {
		need := ceilDiv(satMul(2, satAdd(int64(x.p.Connections), x.f.Sockets.Tracked)), longChain)
		w.Needs = format.Count(need)
		w.Changes = []Change{x.sysctl(trackBucketsName, strconv.FormatInt(withHeadroom(need), 10))}
	}
	return w
}
