package doctor

import "github.com/myriad-go/myriad/internal/format"

// The firewall's connection tracking has limits, too. A loopback connection is one entry for both ends.

const (
	trackMaxName     = "net.netfilter.nf_conntrack_max"
	trackBucketsName = "net.netfilter.nf_conntrack_buckets"
	trackCountName   = "net.netfilter.nf_conntrack_count"
	trackWaitName    = "net.netfilter.nf_conntrack_tcp_timeout_time_wait"

	trackPage = "https://docs.kernel.org/networking/nf_conntrack-sysctl.html"

	// defaultConntrackWait is the time in seconds that an entry remains after an orderly close, by default.
	defaultConntrackWait = 120
	// maxBucketEntries is the number of entries in a hash bucket above which lookups are slow.
	maxBucketEntries = 8
)

func (x *analysis) tracksConnections() bool { return x.f.Sockets.Tracking || x.f.Sockets.Tracked > 0 }

var _ = registerSysctlWall(Wall{
	Name: "conntrack", What: "connections that the firewall can track (" + trackMaxName + ")",
	Effect: "SYNs are dropped (\"nf_conntrack: table full, dropping packet\" in the kernel's log, drop in /proc/net/stat/nf_conntrack): " +
		"clients fail with ETIMEDOUT",
	Source: trackPage, Unit: "connections", Beyond: true,
}, sysctlInfo{name: trackMaxName, isAmount: true, defaultValue: "1024"}, func(x *analysis, w *Wall, limit int64) bool {
	tracked := x.f.Sockets.Tracked
	w.setUsedAndLimit(tracked, limit)
	if !x.tracksConnections() {
		w.Present = format.Count(limit) + ", no rule uses it"
		return true
	}
	seconds, ok := x.sysctlNumber(trackWaitName)
	if !ok {
		seconds = defaultConntrackWait
	}
	w.Holds = x.connsFittingWithClosing(subtractDownToZero(limit, tracked), seconds)
	x.requireSysctlIfExceeded(w, trackMaxName, saturatingAdd(saturatingAdd(x.n, saturatingMul(int64(x.p.Closing), seconds)), tracked))
	return true
}, sysctlInfo{name: trackWaitName}, sysctlInfo{name: trackCountName})

var _ = registerSysctlWall(Wall{
	Name: "conntrack-buckets", Soft: true, What: "buckets of the firewall's table (" + trackBucketsName + ")",
	Effect: "looking up each packet's connection takes longer: more than 8 are in a bucket",
	Source: trackPage, Beyond: true,
}, sysctlInfo{name: trackBucketsName, isAmount: true, defaultValue: "1024"}, func(x *analysis, w *Wall, buckets int64) bool {
	tracked := x.f.Sockets.Tracked
	w.Present, w.Holds = format.Count(buckets), subtractDownToZero(saturatingMul(buckets, maxBucketEntries)/2, tracked)
	x.requireSysctlIfExceeded(w, trackBucketsName, ceilDiv(saturatingMul(2, saturatingAdd(x.n, tracked)), maxBucketEntries))
	return x.tracksConnections()
})
