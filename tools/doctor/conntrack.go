package doctor

import "github.com/myriad-go/myriad/internal/format"

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

var _ = settingWall(Wall{
	Name: "conntrack", What: "connections that the firewall can follow (" + trackMaxName + ")",
	Effect: "SYNs are dropped (\"nf_conntrack: table full, dropping packet\" in the kernel's log, drop in /proc/net/stat/nf_conntrack): " +
		"clients fail with ETIMEDOUT",
	Source: trackPage, Unit: "connections", Beyond: true,
}, setting{name: trackMaxName, amount: true, least: "1024"}, func(x *exam, w *Wall, limit int64) bool {
	tracked := x.f.Sockets.Tracked
	w.use(tracked, limit)
	if !x.tracking() {
		w.Present = format.Count(limit) + ", no rule asks for it"
		return true
	}
	seconds, ok := x.number(trackWaitName)
	if !ok {
		seconds = trackWait
	}
	w.Holds = x.withClosing(satSub(limit, tracked), seconds)
	x.raise(w, trackMaxName, satAdd(satAdd(x.n, satMul(int64(x.p.Closing), seconds)), tracked))
	return true
}, setting{name: trackWaitName}, setting{name: trackCountName})

var _ = settingWall(Wall{
	Name: "conntrack-buckets", Soft: true, What: "buckets of the firewall's table (" + trackBucketsName + ")",
	Effect: "looking up each packet's connection takes longer: more than 8 are in a bucket",
	Source: trackPage, Beyond: true,
}, setting{name: trackBucketsName, amount: true, least: "1024"}, func(x *exam, w *Wall, buckets int64) bool {
	tracked := x.f.Sockets.Tracked
	w.Present, w.Holds = format.Count(buckets), satSub(satMul(buckets, longChain)/2, tracked)
	x.raise(w, trackBucketsName, ceilDiv(satMul(2, satAdd(x.n, tracked)), longChain))
	return x.tracking()
})
