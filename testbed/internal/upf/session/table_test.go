package session

import (
	"sync"
	"testing"
)

func TestTable(t *testing.T) {
	table := NewTEIDTable()
	sessions := make([]*Session, 5000)
	for i := range sessions {
		sessions[i] = New(uint64(i))
		table.Put(uint32(i), sessions[i])
	}
	for i, want := range sessions {
		if got := table.Get(uint32(i)); got != want {
			t.Fatalf("key %d: got %v", i, got)
		}
	}
	table.Delete(7)
	table.Put(8, sessions[0])
	if table.Get(7) != nil || table.Get(8) != sessions[0] || table.Get(9) != sessions[9] || table.Get(5000) != nil {
		t.Error("a change touched more than its key")
	}
}

// A reader sees either the old or the new session, never anything else, while a writer replaces it (run with -race).
func TestTableWhileItChanges(t *testing.T) {
	table := NewAddressTable()
	key := Address{High: 1, Low: 2}
	first, second := New(1), New(2)
	table.Put(key, first)
	var readers sync.WaitGroup
	stop := make(chan struct{})
	for range 2 {
		readers.Add(1)
		go func() {
			defer readers.Done()
			for {
				select {
				case <-stop:
					return
				default:
				}
				if got := table.Get(key); got != first && got != second {
					t.Errorf("got %v", got)
					return
				}
			}
		}()
	}
	for i := range 2000 {
		table.Put(key, []*Session{first, second}[i%2])
		table.Put(Address{Low: uint64(i)}, first)
	}
	close(stop)
	readers.Wait()
}
