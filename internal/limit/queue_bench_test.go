package limit

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

const benchWaiters = 10_000

func benchClaim(i int, places ...Place) Claim {
	return Claim{
		UID:   types.UID(fmt.Sprintf("8d6f0c1e-5b7a-4a0e-9c3d-%012d", i)),
		Name:  types.NamespacedName{Namespace: "agents", Name: fmt.Sprintf("call-%d", i)},
		Since: at(float64(i / 100)), Places: places,
	}
}

// One operation is one call that comes, waits behind 10,000 others, is woken,
// runs and ends: two Takes and a Release.
func BenchmarkQueue(b *testing.B) {
	for _, most := range []int{1, 10, 5000} {
		b.Run(fmt.Sprintf("limit-%d", most), func(b *testing.B) {
			throughput(b, most, func(int) []Place { return []Place{{"T", most}} })
		})
		b.Run(fmt.Sprintf("limit-%d-and-100-callers", most), func(b *testing.B) {
			throughput(b, most, func(i int) []Place { return []Place{{"T", most}, {fmt.Sprint("C", i%100), most}} })
		})
	}
}

func throughput(b *testing.B, most int, places func(int) []Place) {
	var q Queue
	claims := map[types.NamespacedName]Claim{}
	var run []types.UID
	i := 0
	come := func() {
		c := benchClaim(i, places(i)...)
		i++
		blocked, next := q.Take(c)
		switch {
		case len(next) > 0:
			b.Fatal("a newcomer wakes nobody")
		case blocked == nil:
			run = append(run, c.UID)
		default:
			claims[c.Name] = c
		}
	}
	for range benchWaiters + most {
		come()
	}
	b.ReportAllocs()
	for b.Loop() {
		come()
		next := q.Release(run[0])
		run = run[1:]
		if len(next) != 1 {
			b.Fatalf("%d calls are woken, want 1", len(next))
		}
		c := claims[next[0]]
		delete(claims, next[0])
		if blocked, next := q.Take(c); blocked != nil || len(next) > 0 {
			b.Fatal("the woken call has no place")
		}
		run = append(run, c.UID)
	}
}

// The worst case: 10,000 calls of one caller wait at its own limit while their
// Tool has room; every call of others that ends has to pass them all. One
// operation is a Take and a Release.
func BenchmarkQueueBeside(b *testing.B) {
	var q Queue
	for i := range benchWaiters + 1 {
		q.Take(benchClaim(i, Place{"T", 10}, Place{"A", 1}))
	}
	other := benchClaim(benchWaiters+1, Place{"T", 10}, Place{"B", 1})
	b.ReportAllocs()
	for b.Loop() {
		if blocked, _ := q.Take(other); blocked != nil {
			b.Fatalf("%+v", *blocked)
		}
		if next := q.Release(other.UID); len(next) > 0 {
			b.Fatal("nobody is to be woken")
		}
	}
}

// 10,000 restored waiters ask, all but one held up at a key beside one that has
// room. One operation is all of them.
func BenchmarkQueueRestored(b *testing.B) {
	for _, order := range []string{"oldest", "youngest"} {
		b.Run(order+"-first", func(b *testing.B) {
			for b.Loop() {
				var q Queue
				for i := range benchWaiters {
					q.Restore(benchClaim(i, Place{Key: "T"}, Place{Key: "A"}), false)
				}
				for i := range benchWaiters {
					if order == "youngest" {
						i = benchWaiters - 1 - i
					}
					q.Take(benchClaim(i, Place{"T", benchWaiters}, Place{"A", 1}))
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/benchWaiters, "ns/call")
		})
	}
}
