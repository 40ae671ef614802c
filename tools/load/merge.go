package load

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/myriad-go/myriad/internal/format"
)

// Merge combines the results of several generators that loaded the same servers at the same time. It adds up counts and
// rates.
//
// The merged percentiles of Latency are always exact, because each result contains the histogram of Latency. The
// percentiles of Service, Late, Connect and FirstByte are exact only if the field Histograms is set in all results.
// Otherwise, Merge uses the worst value of each percentile.
//
// Merge returns an error if the results have different modes. It also returns an error if the runs did not overlap in
// time, according to the clocks of the generators.
func Merge(results ...*Result) (*Result, error) {
	if len(results) == 0 {
		return nil, errors.New("load: merge: no results; expected one or more")
	}
	first := results[0]
	all, latency, rate := *first, newHistogram(), 0.0
	var targets []string
	for i, r := range results {
		h, err := r.checkMergeableAndDecodeHistogram(first)
		if err != nil {
			return nil, fmt.Errorf("load: merge: result %d: %w", i+1, err)
		}
		if h != nil {
			if dropped := latency.Merge(h); dropped > 0 {
				return nil, fmt.Errorf("load: merge: result %d: histogram has %d latencies above %v or over its capacity; expected a histogram of this package", i+1, dropped, maxLatency)
			}
		}
		rate += r.Rate()
		if !slices.Contains(targets, r.Target) {
			targets = append(targets, r.Target)
		}
		if i > 0 {
			mergeFieldsByTag(&all, r, false)
		}
	}
	all.Target = strings.Join(targets, ", ")
	if rate > 0 {
		// If the windows differ slightly, choose the window that matches the sum of the rates.
		all.Window = time.Duration(float64(all.answeredOrSentMessages()) / rate * float64(time.Second))
	}
	if latency.TotalCount() > 0 {
		ends := all.Latency // minimum and maximum of Latency, which are more exact than those of the histogram
		all.Latency, all.Histogram = summarizeHistogram(latency), encodeHistogram(latency)
		all.Latency.Min, all.Latency.Max = ends.Min, ends.Max
	}
	if err := mergeCompleteHistograms(&all, &all.Histograms, results...); err != nil {
		return nil, fmt.Errorf("load: merge: %w", err)
	}
	return &all, nil
}

// MergeEvents combines events of several generators into one. The events must be for the same phase and from about the
// same time. The numbers in snapshots, plans, intervals, verifications and broadcasts are added up, as are received
// bytes. If several generators report on the same server, it counts only once.
//
// The percentiles of intervals are exact if all events have Histograms. Otherwise, MergeEvents uses the worst value of
// each percentile. It does not merge results; see Merge. If there are no events, it returns nil.
func MergeEvents(events ...Event) *Event {
	if len(events) == 0 {
		return nil
	}
	all := Event{Phase: events[0].Phase}
	var intervals []*Interval
	for i := range events {
		if events[i].Interval != nil {
			intervals = append(intervals, events[i].Interval)
		}
		mergeFieldsByTag(&all, &events[i], false)
	}
	if len(intervals) > 1 {
		_ = mergeCompleteHistograms(all.Interval, &all.Interval.Histograms, intervals...)
	}
	return &all
}

// mergeFieldsByTag merges addend into total. If isLaterInterval is set, addend is a later interval of the same
// generator. Otherwise, addend contains the data of another generator. The tag "merge" of a field determines the merged
// value of the field:
//
//	sum     numbers and counts by cause are added; texts are listed; structs and the elements of slices are merged
//	gauge   for several generators, the sum; for successive intervals, the later value
//	shared  for several generators, the first value that is set; for successive intervals, like sum
//	min     the smaller number or the earlier time
//	max     the greater number or the later time; true if either is true
//	first   the first value that is set
//	last    for several generators, the first value that is set; for successive intervals, the later value
//	append  all elements of both slices
//
// The types Latency and Rate have their own rules. If a field has no tag, its value in total remains unchanged. Maps
// and slices in total are never modified but replaced by new ones, because other values can share them.
func mergeFieldsByTag[T any](total, addend *T, isLaterInterval bool) {
	mergeStructByTag(reflect.ValueOf(total).Elem(), reflect.ValueOf(addend).Elem(), isLaterInterval)
}

func mergeStructByTag(total, addend reflect.Value, isLaterInterval bool) {
	switch total := total.Addr().Interface().(type) {
	case *Latency:
		total.mergeKeepingWorst(addend.Addr().Interface().(*Latency))
		return
	case *Rate:
		total.addRateUnlessBothPerConn(addend.Addr().Interface().(*Rate))
		return
	}
	for i, how := range cachedMergeTags(total.Type()) {
		if how != "" {
			mergeField(total.Field(i), addend.Field(i), how, isLaterInterval)
		}
	}
}

var mergeTagCache sync.Map // reflect.Type to []string

func cachedMergeTags(t reflect.Type) (tags []string) {
	if known, ok := mergeTagCache.Load(t); ok {
		return known.([]string)
	}
	for i := range t.NumField() {
		tags = append(tags, t.Field(i).Tag.Get("merge"))
	}
	mergeTagCache.Store(t, tags)
	return tags
}

func mergeField(total, addend reflect.Value, mergeTag string, isLaterInterval bool) {
	switch {
	case isLaterInterval && (mergeTag == "gauge" || mergeTag == "last"):
		total.Set(addend)
	case mergeTag == "first", mergeTag == "last", mergeTag == "shared" && !isLaterInterval:
		if total.IsZero() {
			total.Set(addend)
		}
	case mergeTag == "append":
		total.Set(reflect.AppendSlice(total.Slice3(0, total.Len(), total.Len()), addend))
	case mergeTag == "min":
		if lessNumberTimeOrBool(addend, total) {
			total.Set(addend)
		}
	case mergeTag == "max":
		if lessNumberTimeOrBool(total, addend) {
			total.Set(addend)
		}
	default:
		addFieldValue(total, addend, isLaterInterval)
	}
}

func addFieldValue(total, addend reflect.Value, isLaterInterval bool) {
	switch total.Kind() {
	case reflect.Struct:
		mergeStructByTag(total, addend, isLaterInterval)
	case reflect.Float64:
		total.SetFloat(total.Float() + addend.Float())
	case reflect.String:
		total.SetString(strings.Trim(total.String()+"; "+addend.String(), "; "))
	case reflect.Pointer:
		if total.IsNil() {
			total.Set(addend)
		} else if !addend.IsNil() {
			both := reflect.New(total.Type().Elem())
			both.Elem().Set(total.Elem())
			mergeStructByTag(both.Elem(), addend.Elem(), isLaterInterval)
			total.Set(both)
		}
	case reflect.Map:
		if addend.Len() > 0 {
			total.Set(reflect.ValueOf(AddCauses(maps.Clone(total.Interface().(map[string]int64)), addend.Interface().(map[string]int64), math.MaxInt)))
		}
	case reflect.Slice:
		shared := min(total.Len(), addend.Len())
		total.Set(reflect.AppendSlice(total.Slice3(0, 0, 0), total)) // keep the old elements unchanged
		for i := range shared {
			mergeStructByTag(total.Index(i), addend.Index(i), isLaterInterval)
		}
		total.Set(reflect.AppendSlice(total, addend.Slice(shared, addend.Len())))
	default:
		total.SetInt(total.Int() + addend.Int())
	}
}

func lessNumberTimeOrBool(a, b reflect.Value) bool {
	switch a.Kind() {
	case reflect.Bool:
		return !a.Bool() && b.Bool()
	case reflect.Float64:
		return a.Float() < b.Float()
	case reflect.Struct:
		return a.Interface().(time.Time).Before(b.Interface().(time.Time))
	}
	return a.Int() < b.Int()
}

// mergeCompleteHistograms merges the histograms of all parts for each field of type Latency. It stores the merged
// histogram in *encodedByField, and its summary in the field of *to. If a part has latencies but no valid histogram for
// a field, this field is skipped. If a histogram is invalid, mergeCompleteHistograms also returns an error.
func mergeCompleteHistograms[T Interval | Result](to *T, encodedByField *map[string]string, parts ...*T) (err error) {
	all := make(map[string]string)
	v := reflect.ValueOf(to).Elem()
	for i := range v.NumField() {
		name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
		if t := v.Field(i).Type(); t != reflect.TypeFor[Latency]() && t != reflect.TypeFor[*Latency]() {
			continue
		}
		var merged *hdrhistogram.Histogram
		complete := true
		for n, part := range parts {
			p := reflect.ValueOf(part).Elem()
			h, failed := decodeHistogramOrNil(p.FieldByName("Histograms").Interface().(map[string]string)[name])
			if failed != nil {
				err = cmp.Or(err, fmt.Errorf("result %d: %s: %w", n+1, name, failed))
			}
			switch own := latencyFieldPointer(p.Field(i)); {
			case own == nil || own.Count == 0:
			case h == nil:
				complete = false
			case merged == nil:
				merged = h
			default:
				complete = merged.Merge(h) == 0 && complete
			}
		}
		if l := latencyFieldPointer(v.Field(i)); l != nil && complete && merged != nil {
			*l, all[name] = summarizeHistogram(merged), encodeHistogram(merged)
		}
	}
	*encodedByField = nil
	if len(all) > 0 {
		*encodedByField = all
	}
	return err
}

func latencyFieldPointer(latencyOrPointer reflect.Value) *Latency {
	if latencyOrPointer.Kind() != reflect.Pointer {
		latencyOrPointer = latencyOrPointer.Addr()
	}
	return latencyOrPointer.Interface().(*Latency)
}

func (s *Snapshot) Add(o Snapshot) { mergeFieldsByTag(s, &o, false) }

// checkMergeableAndDecodeHistogram returns the histogram of r, or nil if r has no latencies. It returns an error if r
// and the first result cannot be merged.
func (r *Result) checkMergeableAndDecodeHistogram(first *Result) (histogramOrNil *hdrhistogram.Histogram, _ error) {
	h, err := decodeHistogramOrNil(r.Histogram)
	switch {
	case err != nil:
		return nil, err
	case r.Mode != first.Mode:
		return nil, fmt.Errorf("mode is %q; expected %q, as in the first result", r.Mode, first.Mode)
	case r.Corrected != first.Corrected:
		return nil, errors.New("latency is corrected only in this result or only in the first; expected both or neither")
	case r.Latency.Count > 0 && h == nil:
		return nil, errors.New("latencies without a histogram; expected one, to merge them")
	case r == first || r.Start.IsZero() || first.Start.IsZero():
	case !r.Start.Before(first.Start.Add(first.Took)), !first.Start.Before(r.Start.Add(r.Took)):
		return nil, fmt.Errorf("run started at %v and took %v; expected it to overlap the first, which started at %v and took %v",
			r.Start.Format(time.DateTime), format.RoundToThreeDigits(r.Took), first.Start.Format(time.DateTime), format.RoundToThreeDigits(first.Took))
	}
	return h, nil
}

// addRateUnlessBothPerConn adds the rate of another generator to r. However, r does not change if both rates apply to
// each single connection.
func (r *Rate) addRateUnlessBothPerConn(o *Rate) {
	if r.Each && o.Each {
		return
	}
	if r.To > 0 || o.To > 0 {
		r.To = cmp.Or(r.To, r.PerSecond) + cmp.Or(o.To, o.PerSecond)
	}
	r.PerSecond += o.PerSecond
}

// AddCauses adds error counts to a map of counts by cause, and returns this map. If the map is nil, AddCauses returns a
// new one. The map can contain limit causes. When it is full, the errors of all further causes count under the name
// "other".
func AddCauses(to, counts map[string]int64, limit int) map[string]int64 {
	if to == nil {
		to = make(map[string]int64)
	}
	for cause, n := range counts {
		cause = strings.ToValidUTF8(cause, "?")
		if _, known := to[cause]; !known && len(to) >= limit {
			cause = "other"
		}
		to[cause] += n
	}
	return to
}
