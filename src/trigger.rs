//! Wishes to look at an object again: any number of wishes for one object is one look.

use futures::Stream;
use kube::Resource;
use kube::runtime::reflector::ObjectRef;
use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::Notify;

/// A set of objects to look at; clones share it. It holds each object once, so it is bounded by the objects there are.
pub struct Trigger<K: Resource<DynamicType = ()> + 'static> {
    shared: Arc<Shared<K>>,
}

struct Shared<K: Resource<DynamicType = ()> + 'static> {
    pending: Mutex<HashSet<ObjectRef<K>>>,
    notify: Notify,
}

impl<K: Resource<DynamicType = ()> + 'static> Clone for Trigger<K> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone() }
    }
}

impl<K: Resource<DynamicType = ()> + 'static> Default for Trigger<K> {
    fn default() -> Self {
        Self { shared: Arc::new(Shared { pending: Mutex::default(), notify: Notify::new() }) }
    }
}

impl<K: Resource<DynamicType = ()> + 'static> Trigger<K> {
    /// Asks for a look at `object`.
    pub fn fire(&self, object: ObjectRef<K>) {
        self.shared.pending.lock().unwrap_or_else(PoisonError::into_inner).insert(object);
        self.shared.notify.notify_one();
    }

    /// Asks for a look at the object of that name.
    pub fn fire_named(&self, namespace: &str, name: &str) {
        self.fire(ObjectRef::new(name).within(namespace));
    }

    fn take(&self) -> Option<ObjectRef<K>> {
        let mut pending = self.shared.pending.lock().unwrap_or_else(PoisonError::into_inner);
        let next = pending.iter().next().cloned()?;
        pending.take(&next)
    }

    /// The objects to look at, without end. One consumer at a time.
    pub fn stream(&self) -> impl Stream<Item = ObjectRef<K>> + Send + 'static
    where
        K: Send + Sync,
    {
        futures::stream::unfold(self.clone(), |trigger| async move {
            loop {
                if let Some(object) = trigger.take() {
                    return Some((object, trigger));
                }
                trigger.shared.notify.notified().await;
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::{FutureExt, StreamExt};
    use k8s_openapi::api::core::v1::Pod;

    #[test]
    fn many_wishes_for_one_object_are_one_look() {
        let trigger = Trigger::<Pod>::default();
        for _ in 0..3 {
            trigger.fire_named("demo", "a");
        }
        trigger.fire_named("demo", "b");
        let mut stream = Box::pin(trigger.stream());
        let mut seen = Vec::new();
        while let Some(Some(object)) = stream.next().now_or_never() {
            seen.push(object.name);
        }
        seen.sort();
        assert_eq!(seen, ["a", "b"]);
        trigger.fire_named("demo", "a");
        assert_eq!(stream.next().now_or_never().flatten().unwrap().name, "a");
    }
}
